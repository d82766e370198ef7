"""Dumps with known truth: :mod:`numprobe.synth.nan` simulates jobs with an overflow, :mod:`numprobe.synth.rl` computes a model
twice, as a training framework and as an inference engine do."""
