"""Programs that try SeeWhy for longer, harder or beside others than the tests do; ``make help`` names their targets."""
