"""The pipeline from picture and question to result, without Flask and the command line."""
