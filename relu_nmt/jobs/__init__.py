"""Jobs of the commands: settings, and functions of these settings.

A job is a folder. ``settings.py`` has the settings, without PyTorch, so that commands start at
once. ``job.py`` has ``run(settings, progress=True)``, which does the job and returns its result.
With ``progress=False`` it prints nothing; files are written anyway. A job that cannot go on raises
an error of :mod:`relu_nmt.errors`, whose class says what is wrong: a setting, the data, a
checkpoint, the memory or the training. The folders ``translate`` and ``convert`` have the jobs of
several commands. The settings of the sweep are in :mod:`relu_nmt.applications.sweep.settings`.
``training.py``, ``comparison.py`` and ``budget.py`` have what the trainings of translation and of
images share.
"""
