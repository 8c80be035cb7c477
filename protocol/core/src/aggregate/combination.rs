//! What the rules make that combine their inputs with coefficients.

/// v = Σ k_j x_j, or v = x_b + Σ k_j (x_j − x_b), and what the rule left of each input.
pub(super) struct Combination {
    pub(super) k: Vec<f64>,
    pub(super) factors: Vec<f64>,
}
