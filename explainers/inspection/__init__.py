"""What hooks show of a model: traces, captured tensors, interventions, sweeps."""
