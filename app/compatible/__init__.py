"""The routes of KServe V1 and V2 and of TorchServe: codecs around the pipeline."""
