"""(problem, completion) to score, and the killable process pool that runs it."""
