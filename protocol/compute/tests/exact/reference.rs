//! The loss in plain f64, written from the formulas alone.

mod albert;
mod mixture;

use std::cell::RefCell;

use muster_core::ids::{Digest, Leaf};
use muster_core::layout::Layout;
use muster_core::manifest::{Decoder, Family, Model, Scaling};

/// Parameters in f64, found by name.
pub struct Reference<'a> {
    pub model: &'a Model,
    pub layout: Layout,
    pub parameters: Vec<f64>,
    /// Experts that tokens chose when the loss was last computed, in order.
    pub choices: RefCell<Vec<usize>>,
}

type Rows = Vec<Vec<f64>>;

impl Reference<'_> {
    fn tensor(&self, name: &str) -> Rows {
        let tensor = self.layout.tensors().iter().find(|tensor| tensor.name == name).expect(name);
        self.parameters[tensor.range()].chunks(tensor.shape[1]).map(<[f64]>::to_vec).collect()
    }

    /// Mean loss of the windows; a masked model's masks are this seed's and leaf's.
    pub fn loss(&self, windows: &[Vec<u32>], masks: (Digest, Leaf)) -> f64 {
        self.objective(windows, masks)[0]
    }

    /// The same, and the mean of what else the gradient descends.
    pub fn objective(&self, windows: &[Vec<u32>], masks: (Digest, Leaf)) -> [f64; 2] {
        self.choices.borrow_mut().clear();
        let loss = |(index, window): (usize, &Vec<u32>)| match &self.model.family {
            Family::Decoder(_) | Family::Mixture(_) | Family::Variant(_) => self.window(window),
            Family::Albert(albert) => [self.masked_window(albert, masks, (index as u32, window)), 0.0],
        };
        let losses: Vec<[f64; 2]> = windows.iter().enumerate().map(loss).collect();
        [0, 1].map(|part| losses.iter().map(|loss| loss[part]).sum::<f64>() / windows.len() as f64)
    }

    /// Loss of a window, and that of its balance.
    fn window(&self, tokens: &[u32]) -> [f64; 2] {
        let embedding = self.tensor("model.embed_tokens.weight");
        let mut balance = 0.0;
        let sequence = tokens.len() - 1;
        let mut x: Rows = tokens[..sequence].iter().map(|token| embedding[*token as usize].clone()).collect();
        for layer in 0..self.model.layers {
            let weight = |name: &str| self.tensor(&format!("model.layers.{layer}.{name}.weight"));
            let normed = self.norm(&x, &weight("input_layernorm")[0]);
            let [q, k, v] = ["q", "k", "v"].map(|name| {
                let name = format!("self_attn.{name}_proj");
                let mut rows = linear(&normed, &weight(&name));
                if self.model.has_biases() {
                    let bias = self.tensor(&format!("model.layers.{layer}.{name}.bias"));
                    let biases = vec![bias[0].clone(); rows.len()];
                    add(&mut rows, &biases);
                }
                rows
            });
            let [q, k] = [("q", q), ("k", k)].map(|(of, rows)| {
                if self.model.has_head_norms() {
                    self.normed_heads(&rows, &weight(&format!("self_attn.{of}_norm"))[0])
                } else {
                    rows
                }
            });
            let mixed = self.attention(&q, &k, &v);
            add(&mut x, &linear(&mixed, &weight("self_attn.o_proj")));
            let normed = self.norm(&x, &weight("post_attention_layernorm")[0]);
            let mlp = format!("model.layers.{layer}.mlp");
            match &self.model.family {
                Family::Mixture(mixture) => balance += self.mixture(mixture, &mlp, &normed, &mut x),
                _ => add(&mut x, &self.swiglu(&mlp, &normed)),
            }
        }
        let normed = self.norm(&x, &self.tensor("model.norm.weight")[0]);
        let logits =
            linear(&normed, &if self.decoder().tied { embedding } else { self.tensor("lm_head.weight") });
        [cross_entropy(&logits, tokens[1..].iter().copied()), balance]
    }

    /// A feed-forward, or an expert.
    fn swiglu(&self, name: &str, x: &Rows) -> Rows {
        let [gate, up] =
            ["gate", "up"].map(|part| linear(x, &self.tensor(&format!("{name}.{part}_proj.weight"))));
        let silu = |(g, u): (&f64, &f64)| g / (1.0 + (-g).exp()) * u;
        let product: Rows = gate.iter().zip(&up).map(|(g, u)| g.iter().zip(u).map(silu).collect()).collect();
        linear(&product, &self.tensor(&format!("{name}.down_proj.weight")))
    }

    fn norm(&self, x: &Rows, gain: &[f64]) -> Rows {
        let epsilon = f64::from(self.model.norm_epsilon.value());
        let scaled = |row: &Vec<f64>| {
            let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
            row.iter().zip(gain).map(|(v, g)| v / (mean + epsilon).sqrt() * g).collect()
        };
        x.iter().map(scaled).collect()
    }

    fn normed_heads(&self, rows: &Rows, gain: &[f64]) -> Rows {
        let heads = |row: &Vec<f64>| self.norm(&row.chunks(gain.len()).map(<[f64]>::to_vec).collect(), gain);
        rows.iter().map(|row| heads(row).concat()).collect()
    }

    fn decoder(&self) -> &Decoder {
        self.model.decoder().expect("a reference of decoders")
    }

    fn rotated(&self, row: &[f64], position: usize) -> Vec<f64> {
        let half = row.len() / 2;
        let base = f64::from(self.decoder().rope_base.value());
        let scaling = self.model.variant().and_then(|variant| variant.scaling.as_ref());
        let angle = |i: usize| {
            let frequency = base.powf(-((2 * i) as f64) / row.len() as f64);
            position as f64 * scaling.map_or(frequency, |scaling| scaled(frequency, scaling))
        };
        let low = (0..half).map(|i| row[i] * angle(i).cos() - row[i + half] * angle(i).sin());
        low.chain((0..half).map(|i| row[i + half] * angle(i).cos() + row[i] * angle(i).sin())).collect()
    }

    fn attention(&self, q: &Rows, k: &Rows, v: &Rows) -> Rows {
        let heads = self.model.heads as usize;
        let width = self.model.head_width() as usize;
        let group = heads / self.decoder().key_value_heads as usize;
        let mut mixed = vec![Vec::new(); q.len()];
        for head in 0..heads {
            let own = head * width..(head + 1) * width;
            let shared = head / group * width..(head / group + 1) * width;
            for (token, out) in mixed.iter_mut().enumerate() {
                let query = self.rotated(&q[token][own.clone()], token);
                let score = |other: usize| {
                    let key = self.rotated(&k[other][shared.clone()], other);
                    (dot(&query, &key) / (width as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = (0..=token).map(score).collect();
                let sum: f64 = scores.iter().sum();
                out.extend(
                    shared
                        .clone()
                        .map(|c| (0..=token).map(|other| scores[other] * v[other][c]).sum::<f64>() / sum),
                );
            }
        }
        mixed
    }
}

/// Mean of `−ln p(target)`.
fn cross_entropy(logits: &Rows, targets: impl Iterator<Item = u32>) -> f64 {
    let losses = logits
        .iter()
        .zip(targets)
        .map(|(row, target)| row.iter().map(|logit| logit.exp()).sum::<f64>().ln() - row[target as usize]);
    losses.sum::<f64>() / logits.len() as f64
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn linear(x: &Rows, weights: &Rows) -> Rows {
    x.iter().map(|row| weights.iter().map(|weight| dot(row, weight)).collect()).collect()
}

fn add(x: &mut Rows, y: &Rows) {
    x.iter_mut().zip(y).for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(x, y)| *x += y));
}

/// ARITH-75
fn scaled(frequency: f64, scaling: &Scaling) -> f64 {
    let [factor, low, high] = [scaling.factor, scaling.low, scaling.high].map(|real| f64::from(real.value()));
    let turns = frequency * f64::from(scaling.original) / std::f64::consts::TAU;
    // Between slow and fast, the two are mixed by how far it is.
    let fast = ((turns - low) / (high - low)).clamp(0.0, 1.0);
    (1.0 - fast) * frequency / factor + fast * frequency
}
