// Matrix products: each element is one chain over the depth, ascending (ARITH-2), in tiles.
//
// Set before this file, which is read once for each kernel:
//   NAME             of the kernel
//   TILE             rows and columns of a tile, 128 or 64; each of 256 work-items has TILE/16 × TILE/16 of it
//   A_DEEP, B_DEEP   1 where a factor's depth lies contiguous, else its rows
//   HEADS            1 where there are products of many heads of many windows, with chains that blocks of tokens bound
//
// c[i][j] = ⟨a[i], b[j]⟩, from +0, or from s[i][j] where `start` is 1; s has the rows of c. `a` has `m` rows, `b` has `n`.
// Nothing is added beyond the depth: +0 would turn −0 into +0.

#define DEPTH 16
#define SHARE (TILE / 16)
#define ACROSS (256 / TILE)
// Row or column `i` of a work-item's own, within the tile.
#define OWN(t, i) ((t) * 4 + (i) % 4 + (i) / 4 * 64)
// A work-item's elements of the next slice of a factor: `at` is its first one, `limit` what is left of rows.
#define TAKE(P, x, at, ld, DEEP, limit, from, to)                                                                    \
    UNROLL for (int r = 0; r < SHARE; r++) {                                                                         \
        int row_ = DEEP ? ITEM / 16 + 16 * r : ITEM % TILE, deep_ = (from) + (DEEP ? ITEM % 16 : ITEM / TILE + ACROSS * r); \
        ulong step_ = DEEP ? (ulong)(16 * r) * (ulong)ld : (ulong)(ACROSS * r) * (ulong)ld;                          \
        P[r] = row_ < (limit) && deep_ < (to) ? x[at + step_] : 0.0f;                                                \
    }
#define PUT(S, P, DEEP)                                                                                              \
    UNROLL for (int r = 0; r < SHARE; r++)                                                                           \
        S[DEEP ? ITEM % 16 : ITEM / TILE + ACROSS * r][DEEP ? ITEM / 16 + 16 * r : ITEM % TILE] = P[r];
#define FACTORS(d)                                                                                                   \
    float x[SHARE], y[SHARE];                                                                                        \
    UNROLL for (int i = 0; i < SHARE; i += 4) {                                                                      \
        float4 x_ = *(LOCAL_POINTER const float4 *)&left[w][d][OWN(ty, i)];                                          \
        float4 y_ = *(LOCAL_POINTER const float4 *)&right[w][d][OWN(tx, i)];                                         \
        x[i] = x_.x, x[i + 1] = x_.y, x[i + 2] = x_.z, x[i + 3] = x_.w;                                              \
        y[i] = y_.x, y[i + 1] = y_.y, y[i + 2] = y_.z, y[i + 3] = y_.w;                                              \
    }

KERNEL NAME(int m, int n, int k, GLOBAL const float *a, ulong a0, int lda, GLOBAL const float *b, ulong b0, int ldb,
            GLOBAL const float *s, ulong s0, int start, GLOBAL float *c, ulong c0, int ldc
#if HEADS
            // Windows apart, heads apart; heads of c, of which each adds up `loops` heads of a; heads of a that share one of b.
            , ulong a_window, ulong a_head, ulong b_window, ulong b_head, ulong c_window, ulong c_head, int heads, int loops,
            int sharing,
            // Tokens of a block; whether a row's chain ends with its block (1), or begins with it (2), or only columns up to
            // the end of the block are wanted (3).
            int block, int bound
#endif
) {
    LOCAL float left[2][DEPTH][TILE + 4] ALIGNED, right[2][DEPTH][TILE + 4] ALIGNED;
    const int tx = ITEM % 16, ty = ITEM / 16, across = (n + TILE - 1) / TILE;
#if HEADS
    const int down = (m + TILE - 1) / TILE;
    const ulong product = GROUP / ((ulong)across * down);
    const int tile = (int)(GROUP % ((ulong)across * down));
    const ulong window = product / heads, head = product % heads;
    const int row = tile / across * TILE, column = tile % across * TILE;
    const int last = (row + TILE < m ? row + TILE : m) - 1;
    const int first_end = (row / block + 1) * block, last_end = (last / block + 1) * block;
    if (bound == 3 && column >= last_end)
        return;
    // What is common to all rows of the tile lies between `all_from` and `all_to`.
    const int from = bound == 2 ? row / block * block : 0, to = bound == 1 && last_end < k ? last_end : k;
    const int all_from = bound == 2 ? last / block * block : 0, all_to = bound == 1 && first_end < k ? first_end : k;
    c0 += window * c_window + head * c_head;
    int begin[SHARE], end[SHARE];
    UNROLL for (int i = 0; i < SHARE; i++) {
        int own = (row + OWN(ty, i)) / block * block;
        begin[i] = bound == 2 ? own : 0;
        end[i] = bound == 1 && own + block < k ? own + block : k;
    }
#else
    const int row = (int)(GROUP / across) * TILE, column = (int)(GROUP % across) * TILE;
    const int from = 0, to = k;
#endif
    float acc[SHARE][SHARE], p[SHARE], q[SHARE];
    UNROLL for (int i = 0; i < SHARE; i++) UNROLL for (int j = 0; j < SHARE; j++) {
        int i_ = row + OWN(ty, i), j_ = column + OWN(tx, j);
        acc[i][j] = start && i_ < m && j_ < n ? s[s0 + (ulong)i_ * ldc + j_] : 0.0f;
    }
    const ulong a_first = A_DEEP ? (ulong)(row + ITEM / 16) * lda + ITEM % 16 : (ulong)(ITEM / TILE) * lda + row + ITEM % TILE;
    const ulong b_first =
        B_DEEP ? (ulong)(column + ITEM / 16) * ldb + ITEM % 16 : (ulong)(ITEM / TILE) * ldb + column + ITEM % TILE;
    const ulong a_step = A_DEEP ? 1 : lda, b_step = B_DEEP ? 1 : ldb;
#if HEADS
    for (int loop = 0; loop < loops; loop++) {
        const ulong of_a = head * loops + loop;
        ulong a_at = a0 + window * a_window + of_a * a_head + a_first + from * a_step;
        ulong b_at = b0 + window * b_window + of_a / sharing * b_head + b_first + from * b_step;
#else
    {
        ulong a_at = a0 + a_first, b_at = b0 + b_first;
#endif
        TAKE(p, a, a_at, lda, A_DEEP, m - row, from, to)
        TAKE(q, b, b_at, ldb, B_DEEP, n - column, from, to)
        SYNC;
        PUT(left[0], p, A_DEEP)
        PUT(right[0], q, B_DEEP)
        SYNC;
        int w = 0;
        for (int d0 = from; d0 < to; d0 += DEPTH) {
            const int more = d0 + DEPTH < to;
            a_at += DEPTH * a_step;
            b_at += DEPTH * b_step;
            if (more) {
                TAKE(p, a, a_at, lda, A_DEEP, m - row, d0 + DEPTH, to)
                TAKE(q, b, b_at, ldb, B_DEEP, n - column, d0 + DEPTH, to)
            }
#if HEADS
            if (d0 >= all_from && d0 + DEPTH <= all_to) {
#else
            if (d0 + DEPTH <= to) {
#endif
                UNROLL for (int d = 0; d < DEPTH; d++) {
                    FACTORS(d)
                    UNROLL for (int i = 0; i < SHARE; i++) UNROLL for (int j = 0; j < SHARE; j++)
                        acc[i][j] = fma(x[i], y[j], acc[i][j]);
                }
            } else {
                for (int d = 0; d < DEPTH && d0 + d < to; d++) {
                    FACTORS(d)
                    UNROLL for (int i = 0; i < SHARE; i++) UNROLL for (int j = 0; j < SHARE; j++)
#if HEADS
                        acc[i][j] = d0 + d >= begin[i] && d0 + d < end[i] ? fma(x[i], y[j], acc[i][j]) : acc[i][j];
#else
                        acc[i][j] = fma(x[i], y[j], acc[i][j]);
#endif
                }
            }
            if (more) {
                PUT(left[w ^ 1], p, A_DEEP)
                PUT(right[w ^ 1], q, B_DEEP)
            }
            SYNC;
            w ^= 1;
        }
    }
    UNROLL for (int i = 0; i < SHARE; i++) UNROLL for (int j = 0; j < SHARE; j++) {
        int i_ = row + OWN(ty, i), j_ = column + OWN(tx, j);
        if (i_ < m && j_ < n)
            c[c0 + (ulong)i_ * ldc + j_] = acc[i][j];
    }
}

#undef NAME
#undef TILE
#undef A_DEEP
#undef B_DEEP
#undef HEADS
#undef DEPTH
#undef SHARE
#undef ACROSS
#undef OWN
#undef TAKE
#undef PUT
#undef FACTORS
