"""The only room that registers hooks: sessions, call sites, parameters, gradient taps."""
