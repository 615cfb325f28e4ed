"""Tables, plots and reports of the results of runs."""
