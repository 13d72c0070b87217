"""History: what the journal has sealed away into storage backends, and how it is found again."""
