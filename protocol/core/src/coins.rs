//! A verifier's coins: secret until shown, fixed long before, so that nobody foresees or steers an audit.
//!
//! A verifier registers the Merkle root of its coins before the rounds that they serve. Each round has one node coin,
//! which selects the members that it audits, and several leaf coins, one an audit, which draw the leaves. Selection
//! also hashes R_t, which nobody knows at registration; an opened coin proves it afterwards.

use zeroize::Zeroizing;

use crate::error::{Misuse, Reject};
use crate::hash::{Domain, Hasher, below};
use crate::ids::{Block, Digest, MemberId, Round, Slot};
use crate::merkle::{self, Proof, Tree};
use crate::{choice, limits, wire};

choice! {
    /// What a coin decides.
    pub enum CoinKind {
        /// Which members are audited; one a round, `k` = 0.
        Node,
        /// Which leaves of one audit are recomputed; `k` counts from 0.
        Leaf,
    }
}

wire! {
    /// What a verifier registers: coins for `rounds` rounds from `first_round`.
    pub struct CoinTerms {
        /// Merkle root. Leaf `(round − first_round)·(1 + leaf_coins) + j` is a round's node coin for `j` = 0 and its
        /// leaf coin `k` for `j` = 1 + k.
        pub root: Digest,
        /// First round served.
        pub first_round: Round,
        /// Rounds served.
        pub rounds: u32,
        /// Leaf coins of a round.
        pub leaf_coins: u16,
    }
}

impl CoinTerms {
    /// Checks the size.
    ///
    /// # Errors
    /// [`Reject::Rule`] for no round, a round past the largest number, or more than [`limits::COINS`] coins.
    pub fn check(&self) -> Result<(), Reject> {
        // Otherwise the numbers of rounds would overflow where the tree is made.
        if self.rounds == 0 || self.first_round.0.checked_add(self.rounds - 1).is_none() {
            return Err(Reject::Rule("coins serve at least one round, within the numbers of rounds"));
        }
        if self.count() > limits::COINS {
            return Err(Reject::Rule("a verifier registers at most 2^22 coins"));
        }
        Ok(())
    }

    /// Whether there are coins for a round.
    pub fn serves(&self, round: Round) -> bool {
        self.index(CoinKind::Node, round, 0).is_some()
    }

    fn count(&self) -> u64 {
        u64::from(self.rounds) * (1 + u64::from(self.leaf_coins))
    }

    /// The index of a coin in the tree; `None` where there is none.
    fn index(&self, kind: CoinKind, round: Round, k: u16) -> Option<u64> {
        let past = round.0.checked_sub(self.first_round.0).filter(|past| *past < self.rounds)?;
        let within = match kind {
            CoinKind::Node if k == 0 => 0,
            CoinKind::Leaf if k < self.leaf_coins => 1 + u64::from(k),
            CoinKind::Node | CoinKind::Leaf => return None,
        };
        Some(u64::from(past) * (1 + u64::from(self.leaf_coins)) + within)
    }
}

/// The coins of one verifier and their tree.
pub struct CoinTree {
    secret: Zeroizing<[u8; 32]>,
    terms: CoinTerms,
    tree: Tree,
}

impl CoinTree {
    /// Makes all coins of a secret, `H(COIN, secret, kind, round, k)` with numbers in their canonical encoding
    /// (COIN-1), and the tree that is registered of them (COIN-2).
    ///
    /// # Errors
    /// [`Misuse`] where [`CoinTerms::check`] fails.
    pub fn new(secret: [u8; 32], first_round: Round, rounds: u32, leaf_coins: u16) -> Result<Self, Misuse> {
        let secret = Zeroizing::new(secret);
        let mut terms = CoinTerms { root: Digest::default(), first_round, rounds, leaf_coins };
        terms.check().map_err(|reject| Misuse(reject.to_string()))?;
        let coins = (0..rounds).flat_map(|past| {
            let round = Round(first_round.0 + past);
            let leaves = (0..leaf_coins).map(move |k| (CoinKind::Leaf, round, k));
            core::iter::once((CoinKind::Node, round, 0)).chain(leaves)
        });
        let leaves = coins
            .zip(0..)
            .map(|((kind, round, k), index)| merkle::leaf(index, &toss(&secret, kind, round, k).0));
        let tree = Tree::new(leaves);
        terms.root = tree.root();
        Ok(Self { secret, terms, tree })
    }

    /// The Merkle root.
    pub fn root(&self) -> Digest {
        self.terms.root
    }

    /// What is registered.
    pub fn terms(&self) -> CoinTerms {
        self.terms.clone()
    }

    /// Shows one coin; `None` where there is none. A coin that was shown is no secret any more.
    pub fn open(&self, kind: CoinKind, round: Round, k: u16) -> Option<CoinOpening> {
        let proof = self.tree.prove(self.terms.index(kind, round, k)?)?;
        Some(CoinOpening { kind, round, k, coin: toss(&self.secret, kind, round, k), proof })
    }
}

fn toss(secret: &[u8; 32], kind: CoinKind, round: Round, k: u16) -> Digest {
    Hasher::new(Domain::COIN).part(secret).value(&kind).value(&round).value(&k).finish()
}

wire! {
    /// One coin, shown.
    pub struct CoinOpening {
        /// What it decides.
        pub kind: CoinKind,
        /// Its round.
        pub round: Round,
        /// Its number within kind and round.
        pub k: u16,
        /// The coin.
        pub coin: Digest,
        /// That it was registered.
        pub proof: Proof,
    }
}

impl CoinOpening {
    /// COIN-3: checks that this coin was registered under `terms`, for this kind, round and `k`.
    ///
    /// # Errors
    /// [`Reject`] for terms that break their bounds, a coin outside them, or a false proof.
    pub fn verify(&self, terms: &CoinTerms) -> Result<Coin, Reject> {
        terms.check()?;
        let index = terms.index(self.kind, self.round, self.k);
        let index =
            index.ok_or(Reject::Rule("a coin is shown from the rounds and numbers that were registered"))?;
        let leaf = merkle::leaf(index, &self.coin.0);
        // Count and index from the registered terms: the opening's own word could point at another coin.
        let proved = self.proof.verify(&terms.root, terms.count(), index, leaf);
        proved.map_err(|_| Reject::BadProof("a coin"))?;
        Ok(Coin { kind: self.kind, round: self.round, k: self.k, value: self.coin })
    }
}

/// A coin that was proved to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coin {
    kind: CoinKind,
    round: Round,
    k: u16,
    value: Digest,
}

impl Coin {
    /// What it decides.
    pub fn kind(&self) -> CoinKind {
        self.kind
    }

    /// Its round.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Its number within kind and round.
    pub fn k(&self) -> u16 {
        self.k
    }

    /// Its bytes.
    pub fn value(&self) -> Digest {
        self.value
    }
}

/// Whether a node coin selects a block of a round to be reduced again, `blocks_ppm` millionths of the time (COIN-20).
///
/// `H("select-block", coin, R_t, block)`, its first eight bytes as a number, is below `⌊blocks_ppm·2⁶⁴ / 10⁶⌋`. A leaf
/// coin selects none.
pub fn selects_block(coin: &Coin, freeze: &Digest, block: Block, blocks_ppm: u32) -> bool {
    let number = Hasher::new(Domain::SELECT_BLOCK).value(&coin.value).value(freeze).value(&block).number();
    // The coin is not shown for this: nobody is asked, so nobody is harassed, and the evidence stands without
    // the draw.
    coin.kind == CoinKind::Node && u128::from(number) < (u128::from(blocks_ppm) << 64) / 1_000_000
}

/// Whose coin may select a block, as a number in 0..`verifiers`: `H("inspector-block", O_t, block)` mapped there, O_t
/// the head after the outcome, which the last one to commit cannot choose (COIN-21).
pub fn block_inspector(outcome: &Digest, block: Block, verifiers: usize) -> usize {
    let number = Hasher::new(Domain::INSPECTOR_BLOCK).value(outcome).value(&block).number();
    usize::try_from(below(number, verifiers as u64)).unwrap_or(0)
}

/// Whether a node coin selects a member for an audit, `ppm` millionths of the time (COIN-4).
///
/// True when the first eight bytes of `H(SELECT, coin, R_t, member)`, little-endian, are below
/// `⌊ppm·2⁶⁴ / 10⁶⌋`. A leaf coin selects nobody.
pub fn selects(coin: &Coin, freeze: &Digest, member: &MemberId, ppm: u32) -> bool {
    let number = Hasher::new(Domain::SELECT).value(&coin.value).value(freeze).value(member).number();
    coin.kind == CoinKind::Node && u128::from(number) < (u128::from(ppm) << 64) / 1_000_000
}

/// Who of these verifiers inspects the contribution of a slot; `None` of none.
///
/// The one with the smallest first eight bytes of `H(INSPECTOR, outcome, slot, verifier)`, little-endian, the first one
/// among equals (rendezvous hashing, Thaler & Ravishankar 1998): when one goes, only what it inspected goes to others.
/// `outcome` is the head after the round's Outcome, which hangs on signatures of members that nobody else can make:
/// whoever commits last can try R_t by the thousand, but not this.
pub fn inspector(outcome: &Digest, slot: Slot, verifiers: &[MemberId]) -> Option<MemberId> {
    let hasher = Hasher::new(Domain::INSPECTOR).value(outcome).value(&slot);
    // By each verifier's own hash: when one goes, nothing else moves.
    verifiers.iter().copied().min_by_key(|verifier| hasher.clone().value(verifier).number())
}

/// The jurors of a case against a member: of these verifiers the [`limits::JURY`] with the smallest first eight bytes
/// of
/// `H(JURY, outcome, culprit, verifier)`, little-endian, without the parties. `outcome` is that of [`inspector`].
pub fn jury(
    outcome: &Digest,
    culprit: &MemberId,
    accuser: &MemberId,
    verifiers: &[MemberId],
) -> Vec<MemberId> {
    let hasher = Hasher::new(Domain::JURY).value(outcome).value(culprit);
    let mut others: Vec<_> =
        // Verifiers of the round: they have its state and the means; nodes would stop computing leaves.
        verifiers.iter().copied().filter(|verifier| verifier != culprit && verifier != accuser).collect();
    others.sort_by_key(|verifier| hasher.clone().value(verifier).number());
    others.truncate(limits::JURY);
    others
}

/// How many of `jurors` must find a member guilty: five sevenths, rounded up.
pub fn majority(jurors: usize) -> usize {
    (5 * jurors).div_ceil(7)
}

/// Whether a verifier's node coin has it re-execute another one's verdict: `recheck_ppm` millionths of the time,
/// shared with the `others` that may be drawn, too.
///
/// True when the first eight bytes of `H(RECHECK, coin, verdict)`, little-endian, are below
/// `⌊recheck_ppm·2⁶⁴ / (10⁶·others)⌋`; `verdict` is the digest of the signed verdict.
pub fn rechecks(coin: &Coin, verdict: &Digest, recheck_ppm: u32, others: usize) -> bool {
    let number = Hasher::new(Domain::RECHECK).value(&coin.value).value(verdict).number();
    // Divided among the others: with each of them at the whole rate, more verifiers would mean more work for
    // all.
    let most = (u128::from(recheck_ppm) << 64) / (1_000_000 * others.max(1) as u128);
    coin.kind == CoinKind::Node && u128::from(number) < most
}

/// How many leaves an audit draws of a contribution of `m`: `least`, which is `audit.leaves` of the manifest, or an
/// eighth of them if that is more, and never more than there are.
// COIN-5: whole contributions that a fitted row makes good for stay bounded by 8/π, however large they are.
pub fn drawn_leaves(m: u32, least: u8) -> u32 {
    // An eighth of every audit, rather than some audits in full: same bound and work, but without bursts that
    // hold up a verifier.
    let most = limits::AUDIT_LEAVES as u32;
    u32::from(least).max(m.div_ceil(limits::AUDITED_SHARE)).min(most).min(m)
}

/// The positions that a leaf coin draws among `m` leaves, ascending: a = [`drawn_leaves`] different ones.
///
/// A partial shuffle of `0 .. m` (Fisher–Yates): for `i = 0 .. a`, position `i` trades places with position
/// `i + ⌊u_i·(m − i) / 2⁶⁴⌋`; the first `a` are drawn. `u_i` is the first eight bytes, little-endian, of
/// `H(DRAW, coin, R_t, table, i)`, `i` as four little-endian bytes; `table` is what the audited member fixed before
/// the coin was shown. A node coin draws all.
pub fn draw(coin: &Coin, freeze: &Digest, table: &Digest, m: u32, least: u8) -> Vec<u32> {
    let a = drawn_leaves(m, least);
    // More work is the safe side: a coin of the wrong kind must not draw fewer leaves.
    if a >= m || coin.kind != CoinKind::Leaf {
        return (0..m).collect();
    }
    // By the table's seal: it is signed and public before the leaf coin is shown, so that neither party can
    // steer the draw.
    let hasher = Hasher::new(Domain::DRAW).value(&coin.value).value(freeze).value(table);
    // Only the positions that moved: `m` may be anything.
    let mut moved = std::collections::BTreeMap::new();
    let mut drawn: Vec<u32> = (0..a)
        .map(|i| {
            let offset = below(hasher.clone().value(&i).number(), u64::from(m - i));
            let other = i + u32::try_from(offset).unwrap_or(0);
            let here = moved.get(&i).copied().unwrap_or(i);
            moved.insert(other, here).unwrap_or(other)
        })
        .collect();
    drawn.sort_unstable();
    drawn
}

#[cfg(test)]
mod tests;
