// What ALBERT has beside `rows.cl`.

// ARITH-61: means and scales of rows are kept.
KERNEL layer_norm(int rows, int n, float epsilon, GLOBAL const float *x, ulong x0, GLOBAL const float *gain, ulong gain0,
                  GLOBAL const float *bias, ulong bias0, GLOBAL float *y, ulong y0, GLOBAL float *means, ulong means0,
                  GLOBAL float *scales, ulong scales0) {
    LOCAL float lanes[256];
    const int row = ROW, mine = row < rows;
    const ulong first = (ulong)row * n;
    float sum = 0.0f, squares = 0.0f;
    for (int i = LANE; mine && i < n; i += 16)
        sum = sum + x[x0 + first + i];
    const float mean = DIVIDE(tree(lanes, sum), (float)n);
    for (int i = LANE; mine && i < n; i += 16) {
        float apart = x[x0 + first + i] - mean;
        squares = fma(apart, apart, squares);
    }
    const float scale = DIVIDE(1.0f, ROOT(DIVIDE(tree(lanes, squares), (float)n) + epsilon));
    if (mine && LANE == 0) {
        means[means0 + row] = mean;
        scales[scales0 + row] = scale;
    }
    for (int i = LANE; mine && i < n; i += 16)
        y[y0 + first + i] = fma((x[x0 + first + i] - mean) * scale, gain[gain0 + i], bias[bias0 + i]);
}

// ARITH-62, step 1: gradients of gain and bias go on, rows ascending; a work-item has a column.
KERNEL layer_norm_sums(int rows, int n, GLOBAL const float *x, ulong x0, GLOBAL const float *means, ulong means0,
                       GLOBAL const float *scales, ulong scales0, GLOBAL const float *d, ulong d0, GLOBAL float *d_gain,
                       ulong d_gain0, GLOBAL float *d_bias, ulong d_bias0) {
    const ulong column = ALL;
    if (column >= (ulong)n)
        return;
    float g = d_gain[d_gain0 + column], b = d_bias[d_bias0 + column];
    for (int row = 0; row < rows; row++) {
        ulong at = (ulong)row * n + column;
        float dy = d[d0 + at];
        g = fma(dy, (x[x0 + at] - means[means0 + row]) * scales[scales0 + row], g);
        b = b + dy;
    }
    d_gain[d_gain0 + column] = g;
    d_bias[d_bias0 + column] = b;
}

// Multiplies each row by others, value by value. A kernel of its own, so that no compiler can join it with a sum.
KERNEL multiply_columns(ulong count, int n, GLOBAL const float *by, ulong by0, GLOBAL float *v, ulong v0) {
    const ulong all = ALL;
    if (all < count)
        v[v0 + all] = v[v0 + all] * by[by0 + all % n];
}

// ARITH-62, the rest, in place of the gradient times the gain.
KERNEL layer_norm_back(int rows, int n, GLOBAL const float *x, ulong x0, GLOBAL const float *means, ulong means0,
                       GLOBAL const float *scales, ulong scales0, GLOBAL float *d, ulong d0) {
    LOCAL float lanes[256];
    const int row = ROW, mine = row < rows;
    const ulong first = (ulong)row * n;
    const float mean = mine ? means[means0 + row] : 0.0f, scale = mine ? scales[scales0 + row] : 0.0f;
    float sum = 0.0f, along = 0.0f;
    for (int i = LANE; mine && i < n; i += 16) {
        float t = d[d0 + first + i];
        sum = sum + t;
        along = fma(t, (x[x0 + first + i] - mean) * scale, along);
    }
    const float level = DIVIDE(tree(lanes, sum), (float)n);
    const float slope = DIVIDE(tree(lanes, along), (float)n);
    for (int i = LANE; mine && i < n; i += 16) {
        float unit = (x[x0 + first + i] - mean) * scale;
        d[d0 + first + i] = scale * fma(-unit, slope, d[d0 + first + i] - level);
    }
}

// What products with a bias start from (ARITH-65): in rows `stride` apart the bias, with `add` the rows of x plus the bias.
KERNEL bias_rows(ulong count, int n, int stride, int add, GLOBAL const float *x, ulong x0, GLOBAL const float *bias,
                 ulong bias0, GLOBAL float *out, ulong out0) {
    const ulong all = ALL;
    if (all >= count)
        return;
    const float b = bias[bias0 + all % n];
    out[out0 + all / n * stride + all % n] = add ? x[x0 + all] + b : b;
}

// Multiplies the first `n` values of rows `stride` apart (ARITH-65, ARITH-66).
KERNEL scale_columns(ulong count, int n, int stride, float scale, GLOBAL float *v, ulong v0) {
    const ulong all = ALL;
    if (all >= count)
        return;
    const ulong at = v0 + all / n * stride + all % n;
    v[at] = v[at] * scale;
}

KERNEL add_vectors(ulong count, GLOBAL const float *x, ulong x0, GLOBAL const float *y, ulong y0, GLOBAL float *out, ulong out0) {
    const ulong all = ALL;
    if (all < count)
        out[out0 + all] = x[x0 + all] + y[y0 + all];
}

// e to minus GELU's argument (ARITH-63).
#define SLOPE as_float(0x3fcc4229u)
#define CUBE as_float(0x3d922279u)
FUNCTION float gelu_power(float x) { return exponential(-(x * fma(x * x, CUBE, SLOPE))); }

// ARITH-63.
KERNEL gelu(ulong count, GLOBAL const float *x, ulong x0, GLOBAL float *y, ulong y0) {
    const ulong all = ALL;
    if (all < count)
        y[y0 + all] = x[x0 + all] * DIVIDE(1.0f, 1.0f + gelu_power(x[x0 + all]));
}

// ARITH-64, in place of the gradient.
KERNEL gelu_back(ulong count, GLOBAL const float *x, ulong x0, GLOBAL float *d, ulong d0) {
    const ulong all = ALL;
    if (all >= count)
        return;
    const float own = x[x0 + all], power = gelu_power(own), s = DIVIDE(1.0f, 1.0f + power);
    const float inner = fma(own * own, 3.0f * CUBE, SLOPE);
    d[d0 + all] = d[d0 + all] * fma(own * s * (power * s), inner, s);
}
