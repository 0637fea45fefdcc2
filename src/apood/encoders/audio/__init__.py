"""The audio encoder and its spectrogram."""
