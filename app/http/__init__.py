"""HTTP: uploads, access, limits, errors, routes."""
