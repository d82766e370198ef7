"""Writing dumps from live programs. Loaded into other people's training jobs: standard library, numpy, msgspec and the host."""
