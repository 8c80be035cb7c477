//! Mixtures of experts, as the loss whose gradient ARITH-70 to ARITH-74 compute.

use muster_core::manifest::Mixture;

use super::{Reference, Rows, add, linear};

impl Reference<'_> {
    /// Adds what the experts give to `x`; returns the loss that balances them, whose shares have no gradient.
    pub(super) fn mixture(&self, mixture: &Mixture, name: &str, normed: &Rows, x: &mut Rows) -> f64 {
        let weight = |part: &str| self.tensor(&format!("{name}.{part}.weight"));
        let gates = linear(normed, &weight("shared_expert_gate"));
        let mut shared = self.swiglu(&format!("{name}.shared_expert"), normed);
        for (row, gate) in shared.iter_mut().zip(gates) {
            row.iter_mut().for_each(|value| *value /= 1.0 + (-gate[0]).exp());
        }
        add(x, &shared);
        let (columns, active) = (usize::from(mixture.columns), usize::from(mixture.active));
        let outputs: Vec<Rows> =
            (0..columns).map(|expert| self.swiglu(&format!("{name}.experts.{expert}"), normed)).collect();
        let (mut shares, mut means) = (vec![0.0; columns], vec![0.0; columns]);
        for (token, scores) in linear(normed, &weight("gate")).into_iter().enumerate() {
            let mut order: Vec<usize> = (0..columns).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            self.choices.borrow_mut().extend(&order[..active]);
            let powers: Vec<f64> = scores.iter().map(|score| score.exp()).collect();
            let [all, of_chosen]: [f64; 2] =
                [columns, active].map(|count| order[..count].iter().map(|expert| powers[*expert]).sum());
            for expert in &order[..active] {
                shares[*expert] += 1.0 / (active * normed.len()) as f64;
                let values = x[token].iter_mut().zip(&outputs[*expert][token]);
                values.for_each(|(x, y)| *x += powers[*expert] / of_chosen * y);
            }
            means
                .iter_mut()
                .zip(&powers)
                .for_each(|(mean, power)| *mean += power / all / normed.len() as f64);
        }
        let uneven: f64 = shares.iter().zip(&means).map(|(share, mean)| share * mean).sum();
        f64::from(mixture.balance.value()) * columns as f64 * uneven
    }
}
