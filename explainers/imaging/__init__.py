"""Pictures in and drawings out, by Pillow and NumPy; nothing here imports PyTorch."""
