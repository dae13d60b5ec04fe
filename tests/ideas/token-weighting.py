

class TokenWeightingMasker(RandomMasker):
    """PTW: classes of words on which the model's loss is high are masked more often.

    Yang, Zhang, Zhao: "Learning Better Masking for Better Language Model Pre-training" (ACL 2023,
    arXiv:2208.10806), POS-tagging weighted masking, as its code has it:

        score[class] <- .9 score[class] + .1 (mean loss at its selected positions), from 0
        weight[class] = sigmoid(2 (score[class] - mean) / standard deviation)
        rate[v] = c * weight[class of v]

    Deviations: a stand-in for the tagger [D], which sees a type and not its sentence: short lists
    of the closed classes, endings for the open ones, and "##..." as a class of its own. Where the
    code goes through shuffled words until the share is spent and lets each pass with its weight as
    probability, the rate goes as the weight [D]; and pieces are drawn, not whole words.

    The loss is computed a second time from the step's logits, without another forward pass.
    """

    newest = 0.1  # the weight of the newest loss
    closed = {
        "DET": "a an the this that these those each every some any no all both another",
        "PRON": "i me we us you he him she her it they them my our your his its their who which",
        "ADP": "of in on at by for with from to into over under between through during about",
        "AUX": "be am is are was were been have has had do does did will would can could may must",
        "CONJ": "and or but nor so if because although while that than as when since whether",
        "PART": "not to s t re ve ll d m"}
    endings = {"ADV": ("ly",), "VERB": ("ing", "ed", "ize"), "ADJ": ("ous", "ful", "ive", "able"),
               "NOUN": ("tion", "ment", "ness", "ity", "er", "ers", "s")}
    names = ["PUNCT", "NUM", "PIECE", *closed, *endings, "OTHER"]

    def class_of(self, token):
        if not any(character.isalnum() for character in token):
            return "PUNCT"
        if token.startswith("##"):
            return "PIECE"
        if any(character.isdigit() for character in token):
            return "NUM"
        for name, words in self.closed.items():
            if token.lower() in words.split():
                return name
        for name, endings in self.endings.items():
            if token.endswith(endings) and len(token) > 4:
                return name
        return "OTHER"

    def begin(self, inputs, model, steps):
        device = self.frequency.device
        classes = [self.names.index(self.class_of(token)) for token in inputs.tokenizer.tokens]
        classes += [0] * (len(self.frequency) - len(classes))  # the embeddings can have more rows
        self.classes = torch.tensor(classes, device=device)  # (V,)
        self.scores = torch.zeros(len(self.names), device=device)  # (classes,)
        model.predict.register_forward_hook(self.keep_logits)

    def keep_logits(self, head, arguments, logits):
        if head.training:
            self.logits = logits.detach().float()  # (S, V)

    def rates(self):
        deviation = self.scores.std().clamp(min=1e-4)
        weight = (2 * (self.scores - self.scores.mean()) / deviation).sigmoid()  # (classes,)
        weight = weight[self.classes] * (self.frequency > 0)  # (V,)
        # [PAD] is never masked, so the lowest weight is 0: with spread 1 rates go as the weights.
        everywhere = torch.ones_like(weight, dtype=torch.bool)
        return calibrate(weight, everywhere, self.frequency, self.budget, spread=1.0)

    def observe(self, embedding_gradient, embedding_weight, ids, words, selected):
        targets = ids[selected]  # (S,)
        losses = torch.nn.functional.cross_entropy(self.logits, targets, reduction="none")  # (S,)
        self.logits = None
        all_of_them = torch.ones_like(targets, dtype=torch.bool)
        classes, C = self.classes[targets], len(self.scores)
        new = mean_by_type(losses, classes, all_of_them, C)  # (classes,)
        present = mean_by_type(torch.ones_like(losses), classes, all_of_them, C) > 0
        averaged = (1 - self.newest) * self.scores + self.newest * new
        self.scores = torch.where(present, averaged, self.scores)


MASKERS["token-weighting"] = TokenWeightingMasker
