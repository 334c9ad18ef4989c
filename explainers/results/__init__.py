"""What an explanation is once it is made: values, drawings, files."""
