"""The parts of slackline_report.py and slackline_track.py, each with one reason to exist.

load        the folder of an experiment or of a run, checked, as values
files       files that are whole at every time
statistics  intervals, tests, corrections: numbers in, numbers out
curves      the metrics of several seeds as one curve with a band
results     what the report says in numbers, and the files of them
sentences   the same in words; no claim that is not made from the numbers
plots       the pictures
page        report.html
figures     the figures of a run by name and step
tensorboard event files
main        the command of the report

trackers    MLflow, Weights & Biases and TensorBoard behind one interface
track       slackline_track.py, which sends them the records of runs
"""
