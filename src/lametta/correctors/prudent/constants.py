"""Constants of Prudent and Memory: all that was chosen, part by part."""

TINY = 1e-9  # what a probability of 0 counts as, and the least norm

# Scenes

SKETCH_WIDTH = 256  # columns of a sketch of the features; its distances are off by some percent
# A near-duplicate is closer than this share of the baseline distance. The share grows by the second
# number where the last ones were near-duplicates too, as in a video: there few are near by chance.
NEAR, NEAR_IN_VIDEO = 0.3, 0.4
EDGE_POWER = 4  # makes the edge between near-duplicate and new sharp
# In a video the sample before is nearer than this share of the distance to one 16 to 31 before. The
# median share is a quarter in seven videos, and 1 in photographs, however tight their features are.
DRIFT = 0.7
DUPLICATE_RATE_STEP = 1 / 8  # how fast the duplicate rate follows the last samples
REFERENCE_INTERVAL = 16  # samples from one reference sketch to the next
N_REFERENCES, N_RECENT = 20, 4  # how many are kept; the last four are too recent to compare with
BASELINE_DISTANCE = 0.5  # 1 - cosine, before there are references
DUPLICATE_EXPONENT = 0.2  # n near-duplicates weigh as much as n ** 0.2 independent samples

# Experts

MEMORY = 8.0  # samples that an expert's memory reaches back
POWERS = (1.0, 0.25)  # to which the experts take probabilities: a network may be too sure
PENALTY = 0.05  # nats a sample by which an expert must beat the source
PRIOR_WEIGHT = 0.1  # of all experts before the first sample; the source has the rest
SWITCH_RATE = 3e-4  # of a fixed share: the part of the weights that returns to these with a sample
PSEUDO_COUNT = 3.0  # samples that the uniform start of a marginal counts as
HALVE_AT = 1e6  # samples after which a marginal is halved, since sums of float32 stop growing

# Label prior

BUFFER_SIZE = 128  # samples, near-duplicates only once
BUFFER_CLASSES = 32  # of each sample, the most likely
FIT_INTERVAL = 16  # new samples between two fits
EM_STEPS = 12
N_NEIGHBORS = 10
COPY_COSINE = 0.999  # from here on neighbors are copies, which agree even where they are wrong
MIN_AGREEMENT = 0.25  # of neighbors, beyond chance
MIN_GAIN = 0.3  # nats that labels must tell about their neighbors' beyond what the source's tell
MAX_LOG_ODDS = 2.0  # of the label prior over the experts, either way, so that they can soon change

# Neighbors in a batch

MIN_GATE = 0.05  # below this weight of all but the source, neighbors are not asked
NEIGHBOR_WEIGHT = 0.5  # halfway: neighbors that agree make LAME more sure than they are right

# Tracks

TRACK_SWITCH_RATE = 1e-4  # the chance, at each sample, that a track becomes another object's
