from lametta.affinity import knn, linear, rbf
from lametta.lame import LameResult, lame
