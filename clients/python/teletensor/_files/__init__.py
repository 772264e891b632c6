"""Files: save and load, safetensors, files of torch.save, and writing a file as a whole."""
