"""What kind of mistakes the labels have, estimated instead of assumed.

    posterior   q(c | x): what a row truly is, by models that have not seen its label, put on a
                scale of probabilities by rows whose labels are right
    kinds       P(given j | true c, x): how often each class is called another, and how much more
                often where the models waver
    spread      how far the evidence carries: an interval for the number of wrong labels

It imports nothing of the package around it.
"""
