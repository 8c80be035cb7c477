//! Settings of small runs, as `run.toml` has them.

use std::fmt;

/// A tiny model, and what the tests vary.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Rounds to train.
    pub rounds: u32,
    /// Nodes to wait for.
    pub nodes: u32,
    /// Verifiers to wait for.
    pub verifiers: u32,
    /// Audited share of contributions, and leaves drawn in an audit.
    pub audit: (f64, u32),
    /// Rounds between the registration of coins and their use.
    pub coin_lead: u32,
    /// Rounds for which contributions are kept, and states if they are more than 16.
    pub contributions: u32,
    /// Share of the aggregated blocks that verifiers reduce again.
    pub blocks: f64,
    /// Aggregators of a part.
    pub replicas: u32,
    /// Harm beyond which the state goes back; 0 for never.
    pub rollback: f32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rounds: 12,
            nodes: 2,
            verifiers: 0,
            audit: (0.5, 1),
            coin_lead: 2,
            contributions: 16,
            blocks: 0.3,
            replicas: 1,
            rollback: 0.0,
        }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rounds,
            nodes,
            verifiers,
            audit: (share, drawn),
            coin_lead,
            contributions,
            blocks,
            replicas,
            rollback,
        } = self;
        write!(
            f,
            r#"
name = "test"
[model]
width = 16
layers = 1
heads = 2
key_value_heads = 1
hidden = 24
sequence = 32
initial_scale = 0.1
[training]
rounds = {rounds}
leaves = 6
leaf_windows = 1
[optimiser]
warmup = 3
[aggregation]
replicas = {replicas}
[audit]
share = {share}
leaves = {drawn}
coin_lead = {coin_lead}
final_rounds = 2
blocks = {blocks}
[admission]
start_nodes = {nodes}
start_verifiers = {verifiers}
[retention]
contributions = {contributions}
states = {}
[rollback]
limit = {rollback:?}
"#,
            contributions.max(&16)
        )
    }
}
