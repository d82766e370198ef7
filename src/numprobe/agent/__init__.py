"""One sentence in, evidence out: which skill a question asks for, its run, and answers from what the run wrote."""
