"""Chains that are not among the programs kept out: what pretraining and the generator of a run draw."""

from stages.core.seed_model.chains import Chain, draw_chain
from stages.core.seed_model.program_grammar import ScalarDraws
from stages.core.seed_model.programs import Behaviours, ProgramKeys, program_key


class FreshChains:
    """Draws chains; those that are held out, by syntax or by behaviour, are drawn again and counted in `skipped`."""

    def __init__(self, held_out: ProgramKeys) -> None:
        self.skipped = 0
        self._held_out = held_out
        self._behaviours = Behaviours()

    def draw(self, draw: ScalarDraws, depth: int, num_inputs: int) -> Chain:
        """A chain of that depth with `num_inputs` different inputs."""
        while True:
            drawn = draw_chain(draw, depth, num_inputs)
            same = self._behaviours.key(drawn.source, drawn.signature) in self._held_out.behaviour
            if not same and program_key(drawn.source) not in self._held_out.syntax:
                return drawn
            self.skipped += 1
