//! ALBERT's loss in plain f64.

use muster_core::assign::masked;
use muster_core::ids::{Digest, Leaf};
use muster_core::manifest::Albert;

use super::{Reference, Rows, add, cross_entropy, dot, linear};

const LAYER: &str = "albert.encoder.albert_layer_groups.0.albert_layers.0";

impl Reference<'_> {
    pub(super) fn masked_window(
        &self,
        albert: &Albert,
        (seed, leaf): (Digest, Leaf),
        (index, window): (u32, &[u32]),
    ) -> f64 {
        let masked = masked(self.model, albert, &seed, leaf, index, window);
        let words = self.tensor("albert.embeddings.word_embeddings.weight");
        let mut x: Rows = masked.inputs.iter().map(|token| words[*token as usize].clone()).collect();
        add(&mut x, &self.tensor("albert.embeddings.position_embeddings.weight"));
        let x = self.layer_norm(&x, "albert.embeddings.LayerNorm");
        let mut x = self.affine(&x, "albert.encoder.embedding_hidden_mapping_in");
        for _ in 0..self.model.layers {
            x = self.layer(&x);
        }
        let x: Rows = masked.positions.iter().map(|position| x[*position as usize].clone()).collect();
        let x = gelu(&self.affine(&x, "predictions.dense"));
        let mut logits = linear(&self.layer_norm(&x, "predictions.LayerNorm"), &words);
        let bias = self.tensor("predictions.bias");
        logits.iter_mut().for_each(|row| row.iter_mut().zip(&bias[0]).for_each(|(x, bias)| *x += bias));
        cross_entropy(&logits, masked.positions.iter().map(|position| window[*position as usize]))
    }

    fn layer(&self, x: &Rows) -> Rows {
        let of = |name: &str| format!("{LAYER}.{name}");
        let q = self.affine(x, &of("attention.query"));
        let k = linear(x, &self.tensor(&of("attention.key.weight")));
        let v = self.affine(x, &of("attention.value"));
        let mut sum = self.affine(&self.full_attention(&q, &k, &v), &of("attention.dense"));
        add(&mut sum, x);
        let middle = self.layer_norm(&sum, &of("attention.LayerNorm"));
        let mut sum = self.affine(&gelu(&self.affine(&middle, &of("ffn"))), &of("ffn_output"));
        add(&mut sum, &middle);
        self.layer_norm(&sum, &of("full_layer_layer_norm"))
    }

    fn full_attention(&self, q: &Rows, k: &Rows, v: &Rows) -> Rows {
        let width = (self.model.width / self.model.heads) as usize;
        let row = |q: &Vec<f64>| {
            let mut mixed = Vec::new();
            for first in (0..q.len()).step_by(width) {
                let own = first..first + width;
                let score =
                    |k: &Vec<f64>| (dot(&q[own.clone()], &k[own.clone()]) / (width as f64).sqrt()).exp();
                let scores: Vec<f64> = k.iter().map(score).collect();
                let sum: f64 = scores.iter().sum();
                mixed.extend(own.map(|c| scores.iter().zip(v).map(|(p, v)| p * v[c]).sum::<f64>() / sum));
            }
            mixed
        };
        q.iter().map(row).collect()
    }

    /// `x · Wᵀ + b` with the matrix and bias of this name.
    fn affine(&self, x: &Rows, name: &str) -> Rows {
        let mut y = linear(x, &self.tensor(&format!("{name}.weight")));
        let bias = self.tensor(&format!("{name}.bias"));
        y.iter_mut().for_each(|row| row.iter_mut().zip(&bias[0]).for_each(|(y, bias)| *y += bias));
        y
    }

    fn layer_norm(&self, x: &Rows, name: &str) -> Rows {
        let epsilon = f64::from(self.model.norm_epsilon.value());
        let [gain, bias] = ["weight", "bias"].map(|part| self.tensor(&format!("{name}.{part}")).remove(0));
        let normed = |row: &Vec<f64>| {
            let width = row.len() as f64;
            let mean = row.iter().sum::<f64>() / width;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width;
            let unit = |x: f64| (x - mean) / (variance + epsilon).sqrt();
            row.iter().zip(&gain).zip(&bias).map(|((x, gain), bias)| unit(*x) * gain + bias).collect()
        };
        x.iter().map(normed).collect()
    }
}

/// The tanh form.
fn gelu(x: &Rows) -> Rows {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let of = |x: &f64| 0.5 * x * (1.0 + (root * (x + 0.044715 * x.powi(3))).tanh());
    x.iter().map(|row| row.iter().map(of).collect()).collect()
}
