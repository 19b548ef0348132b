"""Constants of Prudent and Memory: all that was chosen, part by part, each with its reason."""

from dataclasses import dataclass

TINY = 1e-9  # what a probability of 0 counts as, and the least norm


@dataclass(frozen=True)
class Constants:
    """What was chosen; nobody has to. docs/safe.md shows what each does, halved and doubled."""

    # Scenes. Whether a stream is a video: is the sample before the nearest of the last eight? By
    # chance one in eight is; of frames under noise more than half are.
    recent: int = 8
    video_share: float = 0.6  # of frames whose nearest is the one before; log odds use it
    video_start: float = -2.0  # log odds of a video at first: most streams are none
    video_limit: float = 12.0  # log odds at most, either way: fifteen frames that say no end it
    # A near-copy is closer than this share of the usual distance; the second is added in a video.
    near: float = 0.1
    near_in_video: float = 0.8
    edge: float = 4.0  # the power that makes the edge between near-copy and new sharp
    scene_length: float = 50.0  # frames: a scene forgets, since a camera moves on
    own_share: float = 0.25  # of a frame's own row beside its scene's: a scene may be wrong
    sharpening: float = 0.14  # n frames that differ weigh as n ** 0.14 independent samples
    sketch_width: int = 256  # columns of a sketch of the features; distances are off by percents
    reference_interval: int = 16  # samples from one reference sketch to the next
    references: int = 20  # for the usual distance; the last four are too recent to compare with
    usual_distance: float = 0.5  # 1 - cosine, before there are references

    # Window: the last samples, near-copies only once.
    window: int = 128
    window_classes: int = 32  # of each sample, the most likely; the others share the rest
    interval: int = 16  # new samples between two looks at the window

    # Order: what makes it, classes or something else that features show.
    order_reach: float = 8.0  # samples: how near in time two samples are, exp(-gap / reach)
    order_deviations: float = 5.0  # from here on a stream has an order; chance gave 4.2 at most
    order_start: float = -1.0  # of the count: it takes looks that agree
    order_ratio: float = 0.6  # outputs in order, over features: classes .7 on, most domains .5
    order_step: float = 4.0  # deviations that one look may speak for classes
    count_limits: tuple[float, float] = (-8.0, 1.0)
    fade: float = 0.5  # of an open count where a window shows no order, by class beyond the first
    order_latest: int = 48  # samples that tell whether runs are over; 32 close more than had to
    latest_share: float = 0.4  # of the window's order: with less of it in these, runs are over
    latest_classes: float = 4.0  # that these have at least, then: inside a run is no order either
    min_again: float = 0.1  # of labels that are one of the three before: runs have .2 at least

    # Experts.
    memory: float = 3.0  # samples that an expert's memory reaches back
    penalty: float = 0.05  # nats a sample by which an expert must beat the source
    prior_weight: float = 0.1  # of both experts before the first sample; the source has the rest
    switch_rate: float = 3e-4  # of a fixed share: what of the weights returns to these, a sample
    pseudo_count: float = 3.0  # samples that the uniform start of a marginal counts as
    base_memory: float = 512.0  # samples that a marginal reaches back: domains change

    # Label prior.
    link: float = 0.4  # of the median distance: below it two samples are copies of one thing
    copy: float = 0.25  # of the usual median: what is nearer to a kept one is left alone
    min_groups: int = 24  # things in the window; seven videos have 15 at most
    em_steps: int = 12
    group_share: int = 12  # a twelfth of the things are neighbors
    # Agreement of the network's own labels, times what neighbors tell: belief begins here, and is
    # full at twice of it. Hopeless networks have .09 at most, usable ones .12 at least.
    min_told: float = 0.1
    min_gain: float = 0.1  # by which corrected labels must agree better

    # Domains.
    domain_look: int = 64  # of the window's samples, whose mean it is and neighbors are asked of
    domain_share: float = 0.75  # of that mean is taken off: it is of few samples
    domain_classes: float = 0.4  # of all classes, as the exponential of the mean row's entropy
    domain_step: float = 0.2  # how fast what neighbors say follows the last look
    domain_slack: float = 0.02  # by which neighbors may agree less afterwards

    # Neighbors in a batch.
    min_gate: float = 0.05  # below this weight of all but the source, neighbors are not asked
    neighbor_weight: float = 0.5  # halfway: neighbors that agree make LAME too sure

    # Tracks.
    track_switch_rate: float = 1e-4  # the chance, a sample, that a track becomes another object's


CONSTANTS = Constants()
