"""Wrappers around several models: split (which parts, and how they are put together), parts (the
oracle of the whole, from those of its parts).

Every part has parameters of its own, so that scores stand side by side and the metric is one block
a part. What differs is how the parts' predictions become one:

    product   log p = Σ_m log p_m                 one-vs-rest, several outputs, chains
    mixture   p = Σ_m w_m p_m                     soft voting, bagging
    mean      log p = Σ_m w_m log p_m             calibrated models, without their calibration
    average   f = Σ_m w_m f_m under a Gaussian    voting and bagging regressors

A questioned row's score is the gradient of that; a training row's is each part's own, as the parts
are fitted one by one.

Imports: oracles.base, the reading of data above; an inner model's oracle through make_oracle.
"""
