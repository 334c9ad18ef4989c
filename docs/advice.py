"""When to use each method and when another, for the pages of methods. Names of methods stand in backquotes."""

from typing import NamedTuple


class Advice(NamedTuple):
    """What helps to choose a method.

    Attributes:
        use: when it is a good choice.
        avoid: when another is better.
        related: methods that readers also consider.
    """

    use: str
    avoid: str
    related: tuple[str, ...]


ADVICE = {
    # Class activation maps
    "ablationcam": Advice(
        "You want weights that are measured, not derived from gradients.",
        "Time matters and the layer is wide: each channel costs a pass of the layers after it.",
        ("scorecam", "recipro-cam", "gradcam"),
    ),
    "cam": Advice(
        "The model ends in global average pooling and one linear layer: then the map is the logit, divided among the "
        "positions, in one pass without gradients.",
        "The model has another head: it is refused. `gradcam` works with every head, and gives the same map "
        "for this one.",
        ("gradcam", "votes", "hirescam"),
    ),
    "eigencam": Advice(
        "You want to see what a layer responds to most, whatever the class.",
        "You want to explain a class: the map is the same for all classes.",
        ("eigengradcam", "kpcacam", "fem", "dff"),
    ),
    "eigengradcam": Advice(
        "The map of `hirescam` is scattered, and you want its main component.",
        "The evidence has several parts: the first component shows the strongest part alone.",
        ("hirescam", "gradcam", "eigencam"),
    ),
    "fem": Advice(
        "You want to see where features stand out, in one pass without gradients.",
        "You want to explain a class: the map is the same for all classes.",
        ("eigencam", "kpcacam", "dff"),
    ),
    "finercam": Advice(
        "Classes are similar, such as breeds of dogs or makes of cars, and you ask what distinguishes one of them.",
        "You ask where the object is: evidence that similar classes share is subtracted.",
        ("gradcam", "votes", "hirescam"),
    ),
    "gradcam": Advice(
        "You want a first look: it takes two passes, works with every CNN, and depends on the class.",
        "The layer is far from the head, or positions matter to the head: averaged gradients then mark places that the "
        "model did not use. Use `hirescam` or `layercam`; for finer maps, `votes-detail` or `lrp`.",
        ("hirescam", "layercam", "finercam", "votes-detail"),
    ),
    "gradcam++": Advice(
        "You reproduce published results, or want all the places whose features speak for a class.",
        "You ask why this class and not another: for an unlikely class the map is nearly the same.",
        ("gradcam", "layercam", "smoothgradcam++"),
    ),
    "gradcam-elementwise": Advice(
        "You compare with pytorch-grad-cam's GradCAMElementWise.",
        "You ask why this class and not another: for an unlikely class the map is nearly the same. `hirescam` keeps "
        "evidence against the class in the sum.",
        ("hirescam", "layercam"),
    ),
    "hirescam": Advice(
        "The head reads positions separately, as in segmenters and VGG, or the layer is not the last one: "
        "gradients are "
        "not averaged, so each position keeps its own.",
        "Global average pooling and one linear layer follow: the map equals that of `gradcam`.",
        ("gradcam", "odam", "layercam"),
    ),
    "iscam": Advice(
        "You compare it with `scorecam`, whose scores it averages over brightening pictures.",
        "Time matters: it takes hundreds or thousands of passes.",
        ("scorecam", "sscam"),
    ),
    "kpcacam": Advice(
        "You want to see what a layer responds to, with components that are not linear.",
        "You want to explain a class: the map is the same for all classes.",
        ("eigencam", "fem", "dff"),
    ),
    "layercam": Advice(
        "You want a finer map from an earlier layer, or a map of several layers together.",
        "You ask why this class and not another: at the last layer the map is nearly the same for an unlikely class.",
        ("gradcam", "hirescam", "votes-detail"),
    ),
    "odam": Advice(
        "You explain one box of a detector: the map tells boxes of the same class apart.",
        "You explain a classifier: on a single layer it equals `hirescam`.",
        ("drise", "hirescam", "gradcam"),
    ),
    "recipro-cam": Advice(
        "You want a map that is measured, at the cost of one pass of the last layers for each position (49 "
        "for 7 by 7).",
        "The layer is fine: the cost grows with the number of its positions.",
        ("ablationcam", "scorecam", "occlusion"),
    ),
    "refinecam": Advice(
        "You want sharper outlines than those of the last layer.",
        "Faithfulness matters: on three of the four networks that we measured, `random` does better in ROAD. "
        "`votes-detail` is finer than the last layer too.",
        ("votes-detail", "gradcam++", "layercam"),
    ),
    "scorecam": Advice(
        "You do not want to rely on gradients, and the layer has few channels.",
        "Time matters: each channel costs a pass of the whole model.",
        ("ablationcam", "recipro-cam", "rise"),
    ),
    "shapleycam": Advice(
        "The class is uncertain, so that the probability reacts to changes: the softmax is part of the score.",
        "Memory or time is limited, or you want the plain logit: with `utility=logit` and most heads, the map "
        "equals that of `gradcam`.",
        ("gradcam", "xgradcam", "finercam"),
    ),
    "smoothgradcam++": Advice(
        "The map of `gradcam++` changes with small noise on the picture.",
        "You ask why this class and not another: for an unlikely class the map is nearly the same.",
        ("gradcam++", "smoothgrad"),
    ),
    "sscam": Advice(
        "You compare it with `scorecam`, whose scores it averages over noise on the masks.",
        "Time matters: it takes thousands of passes.",
        ("scorecam", "iscam"),
    ),
    "votes": Advice(
        "The map should lie on the explained class alone, even in pictures of several objects, in one pass.",
        "The model has no pooling before its head, like transformers with a class token: you then get the map "
        "of `gradcam`.",
        ("votes-detail", "cam", "finercam"),
    ),
    "votes-detail": Advice(
        "You want a map that lies on the explained class and is finer than the last layer, in two passes.",
        "You need negative values, or the model has no pooling before its head.",
        ("votes", "lrp", "gradcam"),
    ),
    "xgradcam": Advice(
        "You want a map whose sum is that of feature times gradient at the layer.",
        "Global average pooling and one linear layer follow: the map equals that of `gradcam`.",
        ("gradcam", "hirescam"),
    ),
    # Gradients
    "blur-ig": Advice(
        "No colour is a neutral baseline: the path goes from a blurred picture to the sharp one.",
        "Colour or brightness of large areas matters: blurring preserves them, so they get low values.",
        ("integrated-gradients", "guided-ig", "expected-gradients"),
    ),
    "expected-gradients": Advice(
        "No single baseline is neutral: many random ones are averaged.",
        "Results must not depend on a seed, or must be relative to your training pictures: baselines are synthetic.",
        ("integrated-gradients", "blur-ig", "deeplift"),
    ),
    "fullgrad": Advice(
        "You want to account for the whole score, with the share of the biases.",
        "You ask why this class and not another: for an unlikely class the map is nearly the same.",
        ("input-x-gradient", "lrp", "gradcam"),
    ),
    "guided-ig": Advice(
        "Maps of `integrated-gradients` are noisy.",
        "You compare pictures or models along equal paths: this path depends on both.",
        ("integrated-gradients", "blur-ig", "xrai"),
    ),
    "input-x-gradient": Advice(
        "You want contributions of pixels in two passes.",
        "The score is saturated, so that gradients are near zero, or pixels of the mean colour matter: they get zero.",
        ("integrated-gradients", "deeplift", "saliency"),
    ),
    "integrated-gradients": Advice(
        "You want contributions of pixels that sum to the change of the score since a baseline.",
        "No baseline is neutral: pixels that equal it get zero. Use `blur-ig` or `expected-gradients`.",
        ("blur-ig", "expected-gradients", "guided-ig", "deeplift"),
    ),
    "saliency": Advice(
        "You ask which pixels the score is most sensitive to, in two passes.",
        "You ask how much pixels contribute, or need a smooth map: `smoothgrad` averages the noise away.",
        ("smoothgrad", "input-x-gradient", "integrated-gradients"),
    ),
    "smoothgrad": Advice(
        "You want the sensitivity of the score to pixels without the noise of `saliency`.",
        "Time matters, or you ask how much pixels contribute.",
        ("saliency", "vargrad", "integrated-gradients"),
    ),
    "vargrad": Advice(
        "You ask where the gradient is unstable.",
        "You need a sign or contributions, or ask why this class and not another.",
        ("smoothgrad", "saliency"),
    ),
    "xrai": Advice(
        "You want whole regions instead of pixels.",
        "The evidence is smaller than the regions of a segmentation, or time matters.",
        ("integrated-gradients", "guided-ig", "kernel-shap"),
    ),
    # Other rules for the backward pass
    "deconvnet": Advice(
        "You reproduce published results.",
        "You want to explain a class: the map follows the edges of the picture and hardly depends on the class.",
        ("guided-backprop", "saliency", "lrp"),
    ),
    "deeplift": Advice(
        "You want contributions relative to a baseline in four passes instead of a hundred.",
        "The model has attention, layer norm or group norm: it is refused.",
        ("integrated-gradients", "lrp", "input-x-gradient"),
    ),
    "excitation-backprop": Advice(
        "You want a distribution over places that sums to one, at any layer.",
        "You ask why this class and not another: without `against` the map is nearly the same for an unlikely class.",
        ("lrp", "gradcam"),
    ),
    "guided-backprop": Advice(
        "You want to see the fine structures that the network can see.",
        "You want to explain a class: the map follows the edges of the picture and hardly depends on the class.",
        ("guided-gradcam", "deconvnet", "lrp"),
    ),
    "guided-gradcam": Advice(
        "You want a figure with fine structures at the places that `gradcam` marks.",
        "You read the structures as evidence: they come from `guided-backprop`, which hardly depends on the class.",
        ("gradcam", "guided-backprop", "lrp"),
    ),
    "lrp": Advice(
        "You want a map as fine as the pixels that depends on the class, in two passes.",
        "The model is a transformer: the defaults of `attnlrp` suit it.",
        ("attnlrp", "deeplift", "votes-detail"),
    ),
    # Transformers
    "attention-rollout": Advice(
        "You ask which patches can reach the head of a transformer.",
        "You want to explain a class: the map is the same for all classes.",
        ("chefer", "legrad"),
    ),
    "attnlrp": Advice(
        "You want a map of a transformer as fine as the pixels, with evidence for and against the class.",
        "The grid of patches in the map is distracting: `legrad` is coarse and smooth.",
        ("legrad", "dave", "chefer", "lrp"),
    ),
    "chefer": Advice(
        "You want attention of a transformer, weighted by what it contributes to a class.",
        "Attention is limited to windows, as in Swin, or you need negative values: use `attnlrp`.",
        ("legrad", "attnlrp", "attention-rollout"),
    ),
    "dave": Advice(
        "You want a fine and smooth map of a transformer, averaged over views of the picture.",
        "Time matters: `attnlrp` takes two passes.",
        ("attnlrp", "legrad", "smoothgrad"),
    ),
    "legrad": Advice(
        "You want a first look at a transformer: three passes, no layer to choose.",
        "You need details within a patch, or negative values: use `attnlrp`.",
        ("attnlrp", "chefer", "attention-rollout"),
    ),
    # Perturbations
    "drise": Advice(
        "You explain a detector without gradients.",
        "Time matters: `odam` takes two passes.",
        ("odam", "rise"),
    ),
    "extremal-perturbation": Advice(
        "You ask which part of the picture is enough for the prediction, for an area that you choose.",
        "You want to rank all places: the map is a mask of one area, found by an optimiser.",
        ("rise", "occlusion", "grid-saliency"),
    ),
    "feature-ablation": Advice(
        "You ask how much each segment matters, with about fifty passes.",
        "The evidence is redundant: the score hardly changes if one segment at a time is hidden. Use `kernel-shap`.",
        ("occlusion", "kernel-shap", "lime"),
    ),
    "grid-saliency": Advice(
        "You ask which context a segmenter needs to predict a region.",
        "You ask about the region itself: it stays visible. Use `hirescam`.",
        ("hirescam", "extremal-perturbation"),
    ),
    "kernel-shap": Advice(
        "You want one number for each segment, and the numbers should sum to the change of the score.",
        "Time matters, or the evidence is smaller than a segment.",
        ("lime", "feature-ablation", "xrai"),
    ),
    "lime": Advice(
        "You want one weight for each segment, as the authors' program computes it.",
        "Results should hardly depend on a seed, or must sum to the score: use `kernel-shap`.",
        ("kernel-shap", "feature-ablation"),
    ),
    "occlusion": Advice(
        "You want a measured map that is easy to explain to others: the score without each part.",
        "The evidence is redundant, or you do not know its size: the patch decides what is seen.",
        ("feature-ablation", "rise", "recipro-cam"),
    ),
    "rise": Advice(
        "You want a measured map, without gradients, layers or segments.",
        "Time matters: with fewer masks the map is noisy.",
        ("occlusion", "sobol", "drise"),
    ),
    "sobol": Advice(
        "Parts act together, and you ask how much each is involved.",
        "You ask whether a part speaks for or against the class: shares of variance have no sign.",
        ("rise", "kernel-shap"),
    ),
    # Concepts
    "dff": Advice(
        "You ask which regions a layer separates, and for which classes each one speaks.",
        "You want one map of all the evidence for a class.",
        ("eigencam", "kpcacam", "gradcam"),
    ),
    # Controls
    "centre": Advice(
        "You need a control: compare methods with it in `evaluate`.",
        "You want an explanation: the map depends on nothing.",
        ("edges", "random"),
    ),
    "edges": Advice(
        "You need a control: compare methods with it in `evaluate`.",
        "You want an explanation: the map depends on the picture alone.",
        ("centre", "random", "guided-backprop"),
    ),
    "random": Advice(
        "You need a control: compare methods with it in `evaluate`.",
        "You want an explanation: the weights of the feature maps are random.",
        ("centre", "edges", "eigencam"),
    ),
}
