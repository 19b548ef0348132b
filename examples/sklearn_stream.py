"""A frozen scikit-learn classifier on a stream: its own probabilities, LAME's and Prudent's.

The classifier was fitted once. In production digits come one class after another, as pages of
forms, seasons or shifts do: first in batches, then one by one.
"""

from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lametta.integrations.sklearn import CorrectedClassifier

X, y = load_digits(return_X_y=True)
fitted = make_pipeline(StandardScaler(), LogisticRegression(C=0.01)).fit(X[:300], y[:300])

stream = 300 + y[300:].argsort(kind="stable")[::3]
X, y = X[stream], y[stream]

batches = CorrectedClassifier(FrozenEstimator(fitted), "lame")
prudent = CorrectedClassifier(FrozenEstimator(fitted))

print(f"the classifier:     {fitted.score(X, y):.1%} right")
print(f"LAME, 64 at a time: {batches.score(X, y):.1%}")
hits = [prudent.predict(X[i : i + 1])[0] == y[i] for i in range(len(y))]
print(f"Prudent, 1 by 1:    {sum(hits) / len(hits):.1%}")
