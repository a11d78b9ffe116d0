"""Two ranks share a layer's experts: two threads of one process, NumPy arrays, no torch."""

from concurrent.futures import ThreadPoolExecutor

import numpy

import flashmoe

RANKS, HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 2, 64, 32, 8, 2
rng = numpy.random.default_rng(0)
up = rng.standard_normal((EXPERTS, 2 * INTERMEDIATE, HIDDEN)).astype(numpy.float32)  # gate rows first
down = rng.standard_normal((EXPERTS, HIDDEN, INTERMEDIATE)).astype(numpy.float32)
tokens = [rng.standard_normal((count, HIDDEN)).astype(numpy.float32) for count in (5, 12)]  # of each rank
routes = [flashmoe.route(rng.standard_normal((len(x), EXPERTS)).astype(numpy.float32), TOP_K) for x in tokens]


def run(num_ranks: int, batches: list, routings: list) -> list:
    problem = flashmoe.Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, max_tokens=32, dtype="fp32", num_ranks=num_ranks)
    group = flashmoe.Group(num_ranks)

    def work(rank: int) -> numpy.ndarray:
        mine = slice(rank * problem.num_local_experts, (rank + 1) * problem.num_local_experts)
        with flashmoe.Layer(problem, up[mine], down[mine], group=group, rank=rank) as layer:
            return layer.forward(batches[rank], *routings[rank])

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(work, range(num_ranks)))


together = run(RANKS, tokens, routes)
alone = run(1, [numpy.concatenate(tokens)], [tuple(map(numpy.concatenate, zip(*routes)))])
assert numpy.array_equal(numpy.concatenate(together), alone[0])  # results do not depend on the number of ranks
print(f"{RANKS} ranks, {[len(y) for y in together]} tokens: the same bits as one rank")
