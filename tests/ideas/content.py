

class ContentMasker(RandomMasker):
    """Content words only: function words and punctuation stay visible, all others have one rate.

    That stop words are no target is a rule in Gu et al., "Train No Evil" (EMNLP 2020,
    arXiv:2004.09733), whose code skips them. Alone, without that paper's classifier, the rule is
    [D], and so is the list: English function words, and what BERT's tokenizer makes of "don't".
    A piece "##..." counts as content, since function words are not cut.

        rate[v] = budget / (share of content in the tokens) for content, and 0 for the rest
    """

    function_words = set("""
        a an the this that these those each every either neither some any no all both half such what
        which whose another other i me my mine we us our ours you your yours he him his she her hers
        it its they them their theirs myself himself herself itself themselves yourself ourselves
        who whom one someone anyone everyone something anything everything nothing nobody
        be am is are was were been being have has had having do does did doing done will would shall
        should can could may might must ought and or but nor so yet if because although though while
        whereas unless until since when where why how than as whether once
        of in on at by for with from to into onto over under above below between among through
        during before after about against within without toward towards upon across behind beyond
        near off out up down around per via not n t s re ve ll d m o there here very too also just
        only even then""".split())

    def begin(self, inputs, model, steps):
        content = torch.zeros_like(self.frequency)  # (V,): 1 or 0
        for v, token in enumerate(inputs.tokenizer.tokens):
            letters = any(character.isalnum() for character in token)
            content[v] = letters and token.lower() not in self.function_words
        # With spread 1 the lowest weight, that of the function words, is 0.
        everywhere = torch.ones_like(content, dtype=torch.bool)
        self.type_rates = calibrate(content, everywhere, self.frequency, self.budget, spread=1.0)

    def rates(self):
        return self.type_rates


MASKERS["content"] = ContentMasker
