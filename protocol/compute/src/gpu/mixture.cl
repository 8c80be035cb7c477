// What experts with weights have beside `rows.cl`. A row's weight is one value.

// ARITH-71: 1/(1 + exp(-x)) of each value, in place.
KERNEL sigmoids(ulong count, GLOBAL float *v, ulong v0) {
    const ulong all = ALL;
    if (all < count)
        v[v0 + all] = DIVIDE(1.0f, 1.0f + exponential(-v[v0 + all]));
}

// ARITH-73: the gradient of what a sigmoid was made of, from the sigmoid's, in place.
KERNEL sigmoids_back(ulong count, GLOBAL const float *sigmoid, ulong sigmoid0, GLOBAL float *d, ulong d0) {
    const ulong all = ALL;
    if (all >= count)
        return;
    const float s = sigmoid[sigmoid0 + all];
    d[d0 + all] = d[d0 + all] * (s * (1.0f - s));
}

// ARITH-71: multiplies each row by its weight.
KERNEL weigh_rows(ulong count, int n, GLOBAL const float *weights, ulong weights0, GLOBAL float *v, ulong v0) {
    const ulong all = ALL;
    if (all < count)
        v[v0 + all] = v[v0 + all] * weights[weights0 + all / n];
}

// ARITH-72: `product`, the gradient of the weighted product, is the weighted product afterwards.
KERNEL weighted_swiglu_back(int rows, int hidden, GLOBAL const float *gate_up, ulong gate_up0, GLOBAL const float *sigmoid,
                            ulong sigmoid0, GLOBAL const float *weights, ulong weights0, GLOBAL float *product,
                            ulong product0, GLOBAL float *d_gate_up, ulong d_gate_up0, GLOBAL float *d_weights,
                            ulong d_weights0) {
    LOCAL float lanes[256];
    const int row = ROW, mine = row < rows;
    const ulong own = (ulong)row * hidden, both = 2 * own;
    float sum = 0.0f;
    for (int i = LANE; mine && i < hidden; i += 16) {
        float made = gate_up[gate_up0 + both + i] * sigmoid[sigmoid0 + own + i] * gate_up[gate_up0 + both + hidden + i];
        sum = fma(product[product0 + own + i], made, sum);
    }
    sum = tree(lanes, sum);
    if (mine && LANE == 0)
        d_weights[d_weights0 + row] = sum;
    const float weight = mine ? weights[weights0 + row] : 0.0f;
    for (int i = LANE; mine && i < hidden; i += 16) {
        float gate = gate_up[gate_up0 + both + i], up = gate_up[gate_up0 + both + hidden + i];
        float s = sigmoid[sigmoid0 + own + i], d = product[product0 + own + i] * weight;
        d_gate_up[d_gate_up0 + both + hidden + i] = d * (gate * s);
        d_gate_up[d_gate_up0 + both + i] = d * up * (s * fma(gate, 1.0f - s, 1.0f));
        product[product0 + own + i] = gate * s * up * weight;
    }
}
