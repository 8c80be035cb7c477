"""What the families of models share (arithmetic.md): tensors by name, attention of one head, sums of rows.

Rows of reals are lists.
"""

import reference as ref
from arithmetic import chain, f32, single, softmax, softmax_backward

BLOCK = 24


def real(text):
    """A real of a manifest."""
    return single(int(text, 16))


def columns(rows):
    return [list(column) for column in zip(*rows)]


def by_tensor(model, values):
    """LAYOUT-1: the flat vector as rows by name."""
    found, offset = {}, 0
    for name, rows, width in ref.tensors(model):
        found[name] = [values[offset + row * width:offset + (row + 1) * width] for row in range(rows)]
        offset += rows * width
    return found


def summed(rows):
    """ARITH-43: columns of rows, added in order from +0."""
    total = [0.0] * len(rows[0])
    for row in rows:
        total = [f32(old + value) for old, value in zip(total, row)]
    return total


def embedded(rows, tokens, gradients):
    """ARITH-44: each token's gradient added to the row of its input, in order."""
    rows = [list(row) for row in rows]
    for token, gradient in zip(tokens, gradients):
        rows[token] = [f32(old + value) for old, value in zip(rows[token], gradient)]
    return rows


# ---------------------------------------------------------------- attention of one head

def block_end(token, tokens, causal):
    """ARITH-5: where the chains of a row end."""
    return min(tokens, (token // BLOCK + 1) * BLOCK) if causal else tokens


def attend(queries, keys, values, causal=True):
    """ARITH-5: probabilities and outputs of each row."""
    probabilities, outputs = [], []
    for token, query in enumerate(queries):
        end = block_end(token, len(queries), causal)
        scores = [chain(query, key) for key in keys[:end]]
        probabilities.append(softmax(scores, token + 1 if causal else end))
        outputs.append([chain(probabilities[-1], column) for column in columns(values[:end])])
    return probabilities, outputs


def attend_backward(queries, keys, values, probabilities, outputs, d_outputs, causal=True):
    """ARITH-37: gradients of the scores, and of the queries."""
    d_scores, d_queries = [], []
    for token, d_output in enumerate(d_outputs):
        end = block_end(token, len(queries), causal)
        d = [chain(d_output, value) for value in values[:end]]
        d_scores.append(softmax_backward(probabilities[token], d, outputs[token], d_output))
        d_queries.append([chain(d_scores[-1], column) for column in columns(keys[:end])])
    return d_scores, d_queries


def gather(weights, rows, start, causal=True):
    """ARITH-37: for each key, Σ weight·row over the rows from its block on, continuing `start`."""
    tokens = len(rows)
    first = lambda key: key // BLOCK * BLOCK if causal else 0
    return [[chain([weights[row][key] for row in range(first(key), tokens)], column[first(key):], start[key][c])
             for c, column in enumerate(columns(rows))] for key in range(tokens)]
