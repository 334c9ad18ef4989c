"""Programs that test SeeWhy for longer, harder or against other libraries; ``make help`` names their targets."""
