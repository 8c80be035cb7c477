// Matrix products like those of `product.cl`, for factors whose rows begin at multiples of 16 bytes, and a depth that is a
// multiple of DEPTH: four values at a time. Tiles of 128 × 128; each of 256 work-items has 8 × 8 of one.
//
// Set before this file, which is read once for each kernel: NAME, A_DEEP, B_DEEP as there; DEPTH, 8 or 16, of a slice; AHEAD 1
// where the next factors are fetched beside the present ones (compilers differ in what they make of it); GROUPED 1 for up to
// four products of one depth, whose results lie in one matrix: one of them alone leaves units without work.

// Row or column `i` of a work-item's own, within the tile.
#define OWN(t, i) ((t) * 4 + (i) % 4 + (i) / 4 * 64)
#define LOADS (DEPTH / 8)
// The four values number `f` of a slice of a factor: their first row, and their first depth.
#define ROW_OF(f, DEEP) (DEEP ? (f) / (DEPTH / 4) : (f) % 32 * 4)
#define DEPTH_OF(f, DEEP) (DEEP ? (f) % (DEPTH / 4) * 4 : (f) / 32)
#define TAKE(P, x, at, ld, DEEP, limit)                                                                               \
    UNROLL for (int r = 0; r < LOADS; r++)                                                                            \
        if (ROW_OF(ITEM + 256 * r, DEEP) < (limit))                                                                   \
            P[r] = *(GLOBAL const float4 *)(x + at + (ulong)((DEEP ? 1024 / DEPTH : 8) * r) * ld);
#define PUT(S, P, DEEP)                                                                                               \
    UNROLL for (int r = 0; r < LOADS; r++) {                                                                          \
        int row_ = ROW_OF(ITEM + 256 * r, DEEP), d_ = DEPTH_OF(ITEM + 256 * r, DEEP);                                 \
        if (DEEP)                                                                                                     \
            S[d_][row_] = P[r].x, S[d_ + 1][row_] = P[r].y, S[d_ + 2][row_] = P[r].z, S[d_ + 3][row_] = P[r].w;       \
        else                                                                                                          \
            *(LOCAL_POINTER float4 *)&S[d_][row_] = P[r];                                                             \
    }
#define FACTORS(X, Y, d)                                                                                              \
    UNROLL for (int i = 0; i < 8; i += 4) {                                                                           \
        float4 x_ = *(LOCAL_POINTER const float4 *)&left[w][d][OWN(ty, i)];                                           \
        float4 y_ = *(LOCAL_POINTER const float4 *)&right[w][d][OWN(tx, i)];                                          \
        X[i] = x_.x, X[i + 1] = x_.y, X[i + 2] = x_.z, X[i + 3] = x_.w;                                               \
        Y[i] = y_.x, Y[i + 1] = y_.y, Y[i + 2] = y_.z, Y[i + 3] = y_.w;                                               \
    }
#define MULTIPLY(x, y)                                                                                                \
    UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 8; j++)                                             \
        acc[i][j] = fma(x[i], y[j], acc[i][j]);
#define OPERANDS(i)                                                                                                   \
    int m##i, int n##i, GLOBAL const float *a##i, ulong a0##i, int lda##i, GLOBAL const float *b##i, ulong b0##i, int ldb##i, \
        ulong c0##i
#define PRODUCT(i)                                                                                                    \
    m = m##i, n = n##i, a = a##i, a0 = a0##i, lda = lda##i, b = b##i, b0 = b0##i, ldb = ldb##i, c0 = c0##i, ldc = n##i
#define TILES(i) (((m##i + 127) / 128) * ((n##i + 127) / 128))

#if GROUPED
KERNEL NAME(int k, int start, GLOBAL float *c, ulong begin, OPERANDS(1), OPERANDS(2), OPERANDS(3), OPERANDS(4)) {
    int m, n, lda, ldb, ldc, tile = (int)GROUP;
    GLOBAL const float *a, *b, *s = c;
    ulong a0, b0, c0;
    if (tile < TILES(1)) {
        PRODUCT(1);
    } else if ((tile -= TILES(1)) < TILES(2)) {
        PRODUCT(2);
    } else if ((tile -= TILES(2)) < TILES(3)) {
        PRODUCT(3);
    } else {
        tile -= TILES(3);
        PRODUCT(4);
    }
    c0 += begin;
    const ulong s0 = c0;
#else
KERNEL NAME(int m, int n, int k, GLOBAL const float *a, ulong a0, int lda, GLOBAL const float *b, ulong b0, int ldb,
            GLOBAL const float *s, ulong s0, int start, GLOBAL float *c, ulong c0, int ldc) {
    const int tile = (int)GROUP;
#endif
    LOCAL float left[2][DEPTH][132] ALIGNED, right[2][DEPTH][132] ALIGNED;
    // 32 work-items have 8 × 4 places of the tile: they read few factors.
    const int tx = ITEM / 32 % 4 * 4 + ITEM % 4, ty = ITEM / 128 * 8 + ITEM % 32 / 4;
    const int across = (n + 127) / 128, row = tile / across * 128, column = tile % across * 128;
    float acc[8][8];
    float4 p[LOADS], q[LOADS];
    UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 8; j++) {
        int i_ = row + OWN(ty, i), j_ = column + OWN(tx, j);
        acc[i][j] = start && i_ < m && j_ < n ? s[s0 + (ulong)i_ * ldc + j_] : 0.0f;
    }
    UNROLL for (int r = 0; r < LOADS; r++)
        p[r] = q[r] = FOUR(0.0f);
    ulong a_at = a0 + (A_DEEP ? (ulong)(row + ROW_OF(ITEM, 1)) * lda + DEPTH_OF(ITEM, 1)
                              : (ulong)DEPTH_OF(ITEM, 0) * lda + row + ROW_OF(ITEM, 0));
    ulong b_at = b0 + (B_DEEP ? (ulong)(column + ROW_OF(ITEM, 1)) * ldb + DEPTH_OF(ITEM, 1)
                              : (ulong)DEPTH_OF(ITEM, 0) * ldb + column + ROW_OF(ITEM, 0));
    const ulong a_step = DEPTH * (A_DEEP ? (ulong)1 : (ulong)lda), b_step = DEPTH * (B_DEEP ? (ulong)1 : (ulong)ldb);
    TAKE(p, a, a_at, lda, A_DEEP, m - row)
    TAKE(q, b, b_at, ldb, B_DEEP, n - column)
    PUT(left[0], p, A_DEEP)
    PUT(right[0], q, B_DEEP)
    SYNC;
    int w = 0;
    for (int d0 = 0; d0 < k; d0 += DEPTH) {
        const int more = d0 + DEPTH < k;
        a_at += a_step;
        b_at += b_step;
        if (more) {
            TAKE(p, a, a_at, lda, A_DEEP, m - row)
            TAKE(q, b, b_at, ldb, B_DEEP, n - column)
        }
#if AHEAD
        float x[2][8], y[2][8];
        FACTORS(x[0], y[0], 0)
        UNROLL for (int d = 0; d < DEPTH; d++) {
            if (d + 1 < DEPTH)
                FACTORS(x[(d + 1) & 1], y[(d + 1) & 1], d + 1)
            MULTIPLY(x[d & 1], y[d & 1])
        }
#else
        UNROLL for (int d = 0; d < DEPTH; d++) {
            float x[8], y[8];
            FACTORS(x, y, d)
            MULTIPLY(x, y)
        }
#endif
        if (more) {
            PUT(left[w ^ 1], p, A_DEEP)
            PUT(right[w ^ 1], q, B_DEEP)
        }
        SYNC;
        w ^= 1;
    }
    UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 8; j++) {
        int i_ = row + OWN(ty, i), j_ = column + OWN(tx, j);
        if (i_ < m && j_ < n)
            c[c0 + (ulong)i_ * ldc + j_] = acc[i][j];
    }
}

#undef NAME
#undef A_DEEP
#undef B_DEEP
#undef DEPTH
#undef AHEAD
#undef GROUPED
#undef OWN
#undef LOADS
#undef ROW_OF
#undef DEPTH_OF
#undef TAKE
#undef PUT
#undef FACTORS
#undef MULTIPLY
#undef OPERANDS
#undef PRODUCT
#undef TILES
