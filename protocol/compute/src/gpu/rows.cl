// What stands between products, forward and backward. 16 work-items share a row where it has a sum: item i goes to lane
// i mod 16, and lanes are added in pairs (ARITH-3). 256 work-items are a group; offsets count values.

// Rows of a group, and a work-item's row and lane.
#define ROWS 16
#define ROW ((int)(GROUP * ROWS) + ITEM / 16)
#define LANE (ITEM % 16)
#define ALL (GROUP * 256 + ITEM)

// The sum of a row's lanes. Every work-item of a group comes here, and to `largest`, under no condition.
#define PAIR(half_)                                                                                                    \
    if (LANE < half_)                                                                                                  \
        lanes[ITEM] = lanes[ITEM] + lanes[ITEM + half_];                                                               \
    SYNC;
FUNCTION float tree(LOCAL_POINTER float *lanes, float own) {
    lanes[ITEM] = own;
    SYNC;
    PAIR(8)
    PAIR(4)
    PAIR(2)
    PAIR(1)
    float sum = lanes[ITEM - LANE];
    SYNC;
    return sum;
}

// The largest of a row's lanes, from -inf; a comparison with NaN is false (ARITH-21).
FUNCTION float largest(LOCAL_POINTER float *lanes, float own) {
    lanes[ITEM] = own;
    SYNC;
    float most = -INFINITY;
    for (int lane = 0; lane < 16; lane++) {
        float value = lanes[ITEM - LANE + lane];
        most = value > most ? value : most;
    }
    SYNC;
    return most;
}

// ARITH-23.
FUNCTION float exponential(float x) {
    float b = x > 88.0f ? 88.0f : x;
    float s = fma(b, as_float(0x3fb8aa3bu), as_float(0x4b400000u));
    float n = s - as_float(0x4b400000u);
    float r = fma(n, as_float(0x395e8083u), fma(n, as_float(0xbf318000u), b));
    float p = as_float(0x39506967u);
    p = fma(p, r, as_float(0x3ab743ceu));
    p = fma(p, r, as_float(0x3c088908u));
    p = fma(p, r, as_float(0x3d2aa9c1u));
    p = fma(p, r, as_float(0x3e2aaaaau));
    p = fma(p, r, as_float(0x3f000000u));
    float y = (fma(p, r * r, r) + 1.0f) * as_float((as_uint(s) << 23) + 0x3f800000u);
    return x < -87.0f ? 0.0f : y;
}

// ARITH-31: y = x·scale·gain, scale = 1/√(Σx²/n + epsilon); with `again`, the scales are there.
KERNEL rms_norm(int rows, int n, float epsilon, int again, GLOBAL const float *x, ulong x0, GLOBAL const float *gain, ulong gain0,
            GLOBAL float *y, ulong y0, GLOBAL float *scales, ulong scales0) {
    LOCAL float lanes[256];
    const int row = ROW, mine = row < rows;
    const ulong first = (ulong)row * n;
    float sum = 0.0f, scale = 0.0f;
    for (int i = LANE; mine && !again && i < n; i += 16)
        sum = fma(x[x0 + first + i], x[x0 + first + i], sum);
    sum = tree(lanes, sum);
    if (again && mine)
        scale = scales[scales0 + row];
    if (!again) {
        scale = DIVIDE(1.0f, ROOT(DIVIDE(sum, (float)n) + epsilon));
        if (mine && LANE == 0)
            scales[scales0 + row] = scale;
    }
    for (int i = LANE; mine && i < n; i += 16)
        y[y0 + first + i] = x[x0 + first + i] * scale * gain[gain0 + i];
}

// ARITH-32: `next` is the stream's gradient taken back through the norm; each row's share of the gain's stays in `d`.
KERNEL rms_norm_back(int rows, int n, GLOBAL const float *x, ulong x0, GLOBAL const float *gain, ulong gain0,
                     GLOBAL const float *scales, ulong scales0, GLOBAL float *d, ulong d0, GLOBAL const float *stream,
                     ulong stream0, GLOBAL float *next, ulong next0) {
    LOCAL float lanes[256];
    const int row = ROW, mine = row < rows;
    const ulong first = (ulong)row * n;
    float sum = 0.0f;
    for (int i = LANE; mine && i < n; i += 16)
        sum = fma(d[d0 + first + i] * gain[gain0 + i], x[x0 + first + i], sum);
    sum = tree(lanes, sum);
    const float scale = mine ? scales[scales0 + row] : 0.0f;
    const float mean = DIVIDE(sum * scale, (float)n);
    for (int i = LANE; mine && i < n; i += 16) {
        float unit = x[x0 + first + i] * scale, dy = d[d0 + first + i];
        next[next0 + first + i] = fma(scale, fma(-unit, mean, dy * gain[gain0 + i]), stream[stream0 + first + i]);
        d[d0 + first + i] = dy * unit;
    }
}

// ARITH-77: the first `heads` heads of every row, in place, each normed by itself. What they were is kept, head after head.
KERNEL norm_heads(ulong all, int heads, int n, int stride, float epsilon, GLOBAL float *v, ulong v0, GLOBAL const float *gain,
                  ulong gain0, GLOBAL float *before, ulong before0, GLOBAL float *scales, ulong scales0) {
    LOCAL float lanes[256];
    const ulong head = GROUP * ROWS + ITEM / 16;
    const int mine = head < all;
    const ulong at = v0 + head / heads * stride + head % heads * n, kept = before0 + head * n;
    float sum = 0.0f;
    for (int i = LANE; mine && i < n; i += 16)
        sum = fma(v[at + i], v[at + i], sum);
    sum = tree(lanes, sum);
    const float scale = DIVIDE(1.0f, ROOT(DIVIDE(sum, (float)n) + epsilon));
    if (mine && LANE == 0)
        scales[scales0 + head] = scale;
    for (int i = LANE; mine && i < n; i += 16) {
        before[kept + i] = v[at + i];
        v[at + i] = v[at + i] * scale * gain[gain0 + i];
    }
}

// Back through it, in place of the gradient; each head's share of the gain's stays in `before`.
KERNEL norm_heads_back(ulong all, int heads, int n, int stride, GLOBAL float *d, ulong d0, GLOBAL const float *gain, ulong gain0,
                       GLOBAL float *before, ulong before0, GLOBAL const float *scales, ulong scales0) {
    LOCAL float lanes[256];
    const ulong head = GROUP * ROWS + ITEM / 16;
    const int mine = head < all;
    const ulong at = d0 + head / heads * stride + head % heads * n, kept = before0 + head * n;
    float sum = 0.0f;
    for (int i = LANE; mine && i < n; i += 16)
        sum = fma(d[at + i] * gain[gain0 + i], before[kept + i], sum);
    sum = tree(lanes, sum);
    const float scale = mine ? scales[scales0 + head] : 0.0f;
    const float mean = DIVIDE(sum * scale, (float)n);
    for (int i = LANE; mine && i < n; i += 16) {
        float unit = before[kept + i] * scale, dy = d[at + i];
        d[at + i] = fma(scale, fma(-unit, mean, dy * gain[gain0 + i]), 0.0f);
        before[kept + i] = dy * unit;
    }
}

// ARITH-43: the sums of 32 columns, rows ascending, from +0 or from what is there; rows are `stride` apart.
KERNEL add_rows(int rows, int n, int stride, int start, GLOBAL const float *x, ulong x0, GLOBAL float *sums, ulong sums0) {
    LOCAL float stage[64][33];
    const int column = (int)GROUP * 32 + ITEM % 32, own = ITEM < 32 && column < n;
    float sum = own && start ? sums[sums0 + column] : 0.0f;
    float next[8];
    UNROLL for (int r = 0; r < 8; r++) {
        int row = ITEM / 32 + 8 * r;
        next[r] = row < rows && column < n ? x[x0 + (ulong)row * stride + column] : 0.0f;
    }
    for (int first = 0; first < rows; first += 64) {
        UNROLL for (int r = 0; r < 8; r++)
            stage[ITEM / 32 + 8 * r][ITEM % 32] = next[r];
        SYNC;
        UNROLL for (int r = 0; r < 8; r++) {
            int row = first + 64 + ITEM / 32 + 8 * r;
            next[r] = row < rows && column < n ? x[x0 + (ulong)row * stride + column] : 0.0f;
        }
        if (own) {
            const int left = rows - first;
            if (left >= 64)
                for (int r = 0; r < 64; r++)
                    sum = sum + stage[r][ITEM];
            else
                for (int r = 0; r < left; r++)
                    sum = sum + stage[r][ITEM];
        }
        SYNC;
    }
    if (own)
        sums[sums0 + column] = sum;
}

// ARITH-34: the pairs (i, i + pairs) of the first `heads` heads of every row; rows are those of whole windows.
KERNEL rotate_heads(int rows, int heads, int pairs, int stride, int tokens, float direction, float scale, GLOBAL float *v, ulong v0,
              GLOBAL const float *cosines, ulong cosines0, GLOBAL const float *sines, ulong sines0) {
    const ulong all = ALL, each = (ulong)heads * pairs;
    if (all >= rows * each)
        return;
    const int row = (int)(all / each), head = (int)(all % each) / pairs, i = (int)(all % each) % pairs;
    const ulong at = v0 + (ulong)row * stride + (ulong)head * 2 * pairs + i, angle = (ulong)(row % tokens) * pairs + i;
    const float c = cosines[cosines0 + angle], s = sines[sines0 + angle] * direction, x = v[at], y = v[at + pairs];
    v[at] = fma(x, c, -(y * s)) * scale;
    v[at + pairs] = fma(y, c, x * s) * scale;
}

// ARITH-35 over the keys of a row's chain (ARITH-5), in place; rows are tokens of heads of windows, `keys` apart.
KERNEL softmax(ulong rows, int keys, int block, int causal, GLOBAL float *p, ulong p0) {
    LOCAL float lanes[256];
    const ulong row = GROUP * ROWS + ITEM / 16;
    const int token = (int)(row % keys), stop = (token / block + 1) * block, end = causal && stop < keys ? stop : keys;
    const int count = row < rows ? end : 0, seen = causal ? token + 1 : keys;
    GLOBAL float *v = p + p0 + row * keys;
    float most = -INFINITY, sum = 0.0f;
    for (int i = LANE; i < count && i < seen; i += 16)
        most = v[i] > most ? v[i] : most;
    most = largest(lanes, most);
    for (int i = LANE; i < count; i += 16) {
        float e = exponential((i < seen ? v[i] : -INFINITY) - most);
        v[i] = e;
        sum = sum + e;
    }
    const float factor = DIVIDE(1.0f, tree(lanes, sum));
    for (int i = LANE; i < count; i += 16)
        v[i] = v[i] * factor;
}

// ARITH-36, in place of the gradient of the probabilities. `o` and `d_o` are the heads' outputs and their gradients.
KERNEL softmax_back(ulong rows, int keys, int block, int causal, int heads, int width, GLOBAL const float *p, ulong p0,
                    GLOBAL float *d, ulong d0, GLOBAL const float *o, ulong o0, GLOBAL const float *d_o, ulong d_o0) {
    LOCAL float lanes[256];
    const ulong row = GROUP * ROWS + ITEM / 16;
    const int token = (int)(row % keys), stop = (token / block + 1) * block, end = causal && stop < keys ? stop : keys;
    const ulong head = row / keys % heads, window = row / keys / heads;
    const ulong output = (window * keys + token) * heads * width + head * width;
    const int count = row < rows ? end : 0;
    float sum = 0.0f;
    for (int i = LANE; row < rows && i < width; i += 16)
        sum = fma(o[o0 + output + i], d_o[d_o0 + output + i], sum);
    sum = tree(lanes, sum);
    for (int i = LANE; i < count; i += 16) {
        ulong at = row * keys + i;
        d[d0 + at] = p[p0 + at] * (d[d0 + at] - sum);
    }
}

// ARITH-38: rows of gate then up become gate·σ(gate)·up; σ is kept.
KERNEL swiglu(ulong count, int hidden, GLOBAL const float *gate_up, ulong gate_up0, GLOBAL float *sigmoid, ulong sigmoid0,
              GLOBAL float *product, ulong product0) {
    const ulong all = ALL;
    if (all >= count)
        return;
    const ulong at = gate_up0 + all / hidden * 2 * hidden + all % hidden;
    const float gate = gate_up[at], up = gate_up[at + hidden];
    const float s = DIVIDE(1.0f, 1.0f + exponential(-gate));
    sigmoid[sigmoid0 + all] = s;
    product[product0 + all] = gate * s * up;
}

// ARITH-39; the product itself takes the place of its gradient.
KERNEL swiglu_back(ulong count, int hidden, GLOBAL const float *gate_up, ulong gate_up0, GLOBAL const float *sigmoid,
                   ulong sigmoid0, GLOBAL float *product, ulong product0, GLOBAL float *d_gate_up, ulong d_gate_up0) {
    const ulong all = ALL;
    if (all >= count)
        return;
    const ulong at = all / hidden * 2 * hidden + all % hidden;
    const float gate = gate_up[gate_up0 + at], up = gate_up[gate_up0 + at + hidden];
    const float s = sigmoid[sigmoid0 + all], d = product[product0 + all];
    d_gate_up[d_gate_up0 + at + hidden] = d * (gate * s);
    d_gate_up[d_gate_up0 + at] = d * up * (s * fma(gate, 1.0f - s, 1.0f));
    product[product0 + all] = gate * s * up;
}

// ARITH-40, but for what follows at the target, and for the logarithm: the sums of e and target less largest are kept.
KERNEL cross_entropy(int rows, int vocabulary, float share, GLOBAL const int *targets, ulong targets0, GLOBAL float *logits,
                     ulong logits0, GLOBAL float *sums, ulong sums0, GLOBAL float *chosen, ulong chosen0) {
    LOCAL float lanes[256];
    const int row = ROW, count = row < rows ? vocabulary : 0;
    GLOBAL float *v = logits + logits0 + (ulong)row * vocabulary;
    float most = -INFINITY, sum = 0.0f;
    const float target = row < rows ? v[targets[targets0 + row]] : 0.0f;
    for (int i = LANE; i < count; i += 16)
        most = v[i] > most ? v[i] : most;
    most = largest(lanes, most);
    for (int i = LANE; i < count; i += 16) {
        float e = exponential(v[i] - most);
        v[i] = e;
        sum = sum + e;
    }
    sum = tree(lanes, sum);
    if (row < rows && LANE == 0) {
        sums[sums0 + row] = sum;
        chosen[chosen0 + row] = target - most;
    }
    const float factor = DIVIDE(share, sum);
    for (int i = LANE; i < count; i += 16)
        v[i] = v[i] * factor;
}

// ARITH-40: what is subtracted last. A kernel of its own, so that no compiler can join it with a product.
KERNEL subtract_targets(int rows, int vocabulary, float share, GLOBAL const int *targets, ulong targets0, GLOBAL float *logits,
                        ulong logits0) {
    const ulong row = ALL;
    if (row < rows) {
        ulong at = logits0 + row * vocabulary + targets[targets0 + row];
        logits[at] = logits[at] - share;
    }
}

// Copies rows: row r of `to` is row numbers[r] of `from`, or, with `back`, the other way round.
KERNEL gather(int rows, int n, int back, GLOBAL const int *numbers, ulong numbers0, GLOBAL const float *from, ulong from0,
              GLOBAL float *to, ulong to0) {
    const ulong all = ALL;
    if (all >= (ulong)rows * n)
        return;
    const ulong other = (ulong)numbers[numbers0 + all / n] * n + all % n;
    if (back)
        to[to0 + other] = from[from0 + all];
    else
        to[to0 + all] = from[from0 + other];
}

// ARITH-44: adds the rows of one token, ascending, to that of the embedding. Token t has the positions
// order[starts[t]..starts[t + 1]]; a group has 256 columns of one of them.
KERNEL embed_back(int n, GLOBAL const int *tokens, ulong tokens0, GLOBAL const int *starts, ulong starts0,
                  GLOBAL const int *order, ulong order0, GLOBAL const float *rows, ulong rows0, GLOBAL float *out, ulong out0) {
    const int parts = (n + 255) / 256, column = (int)(GROUP % parts) * 256 + ITEM;
    const ulong number = GROUP / parts;
    if (column >= n)
        return;
    const int end = starts[starts0 + number + 1];
    const ulong at = out0 + (ulong)tokens[tokens0 + number] * n + column;
    float sum = out[at];
    for (int i = starts[starts0 + number]; i < end; i++)
        sum = sum + rows[rows0 + (ulong)order[order0 + i] * n + column];
    out[at] = sum;
}

// For a device's proof: e^x, x/y, √x, fma(x, y, x), and x·y + x in two roundings, in five rows of `count`.
KERNEL functions(int count, GLOBAL const float *x, ulong x0, GLOBAL const float *y, ulong y0, GLOBAL float *out, ulong out0) {
    const ulong all = ALL;
    if (all >= count)
        return;
    const float a = x[x0 + all], b = y[y0 + all];
    GLOBAL float *to = out + out0 + all;
    const float product = a * b;
    to[0] = exponential(a);
    to[(ulong)count] = DIVIDE(a, b);
    to[2 * (ulong)count] = ROOT(a);
    to[3 * (ulong)count] = fma(a, b, a);
    to[4 * (ulong)count] = product + a;
}

#ifdef WIDE
#define QUARTER(a, b, c, d)                                                                                           \
    x[a] += x[b], x[d] ^= x[a], x[d] = x[d] << 16 | x[d] >> 16, x[c] += x[d], x[b] ^= x[c], x[b] = x[b] << 12 | x[b] >> 20,  \
        x[a] += x[b], x[d] ^= x[a], x[d] = x[d] << 8 | x[d] >> 24, x[c] += x[d], x[b] ^= x[c], x[b] = x[b] << 7 | x[b] >> 25;

// GRID-2: the integers of a tensor's gradient; a work-item has the coefficients of one block of the stream (HASH-6), of which
// coefficient `first` and `count` from there on are wanted.
KERNEL grid(ulong first, ulong count, double inverse_step, GLOBAL const uint *key, ulong key0, GLOBAL const float *g, ulong g0,
            GLOBAL int *q, ulong q0) {
    const ulong block = first / 16 + ALL, stop = first + count;
    if (block * 16 >= stop)
        return;
    uint x[16], y[16];
    x[0] = 0x61707865u, x[1] = 0x3320646eu, x[2] = 0x79622d32u, x[3] = 0x6b206574u;
    UNROLL for (int i = 0; i < 8; i++)
        x[4 + i] = key[key0 + i];
    x[12] = (uint)block, x[13] = (uint)(block >> 32), x[14] = 0u, x[15] = 0u;
    UNROLL for (int i = 0; i < 16; i++)
        y[i] = x[i];
    UNROLL for (int round = 0; round < 4; round++) {
        QUARTER(0, 4, 8, 12)
        QUARTER(1, 5, 9, 13)
        QUARTER(2, 6, 10, 14)
        QUARTER(3, 7, 11, 15)
        QUARTER(0, 5, 10, 15)
        QUARTER(1, 6, 11, 12)
        QUARTER(2, 7, 8, 13)
        QUARTER(3, 4, 9, 14)
    }
    UNROLL for (int i = 0; i < 16; i++) {
        const ulong at = block * 16 + i;
        if (at >= first && at < stop) {
            const float value = g[g0 + at];
            const double sum = (double)value * inverse_step + (double)((x[i] + y[i]) >> 8) * (1.0 / 16777216.0);
            // An exponent of ones is an infinity or NaN.
            const int finite = (as_uint(value) & 0x7f800000u) != 0x7f800000u;
            const double bounded = sum > 4194304.0 ? 4194304.0 : sum < -4194304.0 ? -4194304.0 : sum;
            q[q0 + at] = finite ? (int)floor(bounded) : 0;
        }
    }
}
#endif
