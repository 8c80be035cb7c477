//! Coming and going: invitations, enrolment, return, leave.

use core::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use zeroize::Zeroize;

use crate::codec::schema::{Described, Schema, Shape};
use crate::codec::{List, Text};
use crate::coins::CoinTerms;
use crate::error::Reject;
use crate::ids::{Digest, Height, MemberId, Round, Row, RunId};
use crate::sign::{Identity, Message, Signed, Verified};
use crate::{choice, limits, wire};

/// A network address as text (LINE-4), `host:port`.
pub type Address = Text<{ limits::TEXT_BYTES }>;
/// Addresses where a member can be dialled; none for one that only dials.
pub type Addresses = List<Address, { limits::ADDRESSES }>;

/// What a member calls itself.
pub type Name = Text<{ limits::NAME_BYTES }>;

/// Whether a name may be used: letters, digits, spaces within, and `.`, `_`, `-`, all of them ASCII.
///
/// Names are shown beside the names of others, in terminals and on pages. Characters that look like others, change the
/// direction of writing or combine with what surrounds them would let a member pass for another one there.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b" ._-".contains(&byte);
    name.bytes().all(plain) && name.trim_matches(' ') == name
}

/// A name that may be used, from what a person typed.
///
/// # Errors
/// In words: what a name consists of.
pub fn parse_name(text: &str) -> Result<Name, String> {
    let name = Name::new(text).ok().filter(|name| is_name(name));
    name.ok_or_else(|| {
        format!("a name has at most {} ASCII letters, digits, spaces within, and . _ -", limits::NAME_BYTES)
    })
}

choice! {
    /// What a member does.
    #[derive(PartialOrd, Ord)]
    pub enum Role {
        /// Computes gradients.
        Node,
        /// Recomputes them.
        Verifier,
    }
}

choice! {
    /// What a node wants to do in the rounds to come.
    #[derive(Default)]
    pub enum Engagement {
        /// Compute leaves, and combine parts.
        #[default]
        Trains,
        /// Combine parts, and serve what others fetch.
        Supports,
        /// Nothing, for a while.
        Rests,
    }
}

impl Engagement {
    /// For people, of a member that takes part; none for one that does everything.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Self::Trains => None,
            Self::Supports => Some("supporting"),
            Self::Rests => Some("resting"),
        }
    }
}

impl Role {
    /// The word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Verifier => "verifier",
        }
    }
}

wire! {
    /// Signed by the organiser, or by a member for nodes: whoever proves possession of its key may enrol. The ledger
    /// publishes it, and with that lets nobody in.
    pub struct Invitation {
        /// As what.
        pub role: Role,
        /// How many members may use it.
        pub uses: u32,
        /// Unix time in seconds after which the steward refuses it.
        pub expires: u64,
        /// Public half of a key pair made for this invitation alone. Only those invited know the other half.
        pub key: MemberId,
        /// Whether they have weight from the beginning. Only the organiser says so.
        pub founder: bool,
    }
}

impl Message for Invitation {
    const TAG: &'static str = "invitation";
}

wire! {
    /// Signed by the key of an invitation: who signed it lets this member in, and nobody else.
    pub struct Possession {
        /// Who enrols.
        pub newcomer: MemberId,
    }
}

impl Message for Possession {
    const TAG: &'static str = "possession";
}

wire! {
    /// An invitation in the hands of one newcomer.
    pub struct Presented {
        /// The organiser's or a member's leave.
        pub invitation: Signed<Invitation>,
        /// That the newcomer was given its secret.
        pub possession: Signed<Possession>,
    }
}

wire! {
    /// Signed by a newcomer with its own key.
    pub struct Enrol {
        /// By whose leave; none where the manifest lists the newcomer, or lets everyone come.
        pub invitation: Option<Presented>,
        /// Where it can be dialled.
        pub addresses: Addresses,
        /// A verifier's coins; none for a node.
        pub coins: Option<CoinTerms>,
        /// What it calls itself, for people; may be empty. Nothing depends on it, and several members may have the same.
        pub name: Name,
        /// What it wants to do, if it is a node.
        pub engagement: Engagement,
    }
}

impl Message for Enrol {
    const TAG: &'static str = "enrol";
}

wire! {
    /// A member that was away is back, is somewhere else, or wants to do something else from the next round on.
    pub struct Return {
        /// Ledger height that it has caught up to; keeps an old return from being replayed.
        pub height: Height,
        /// Where it can be dialled now.
        pub addresses: Addresses,
        /// What it wants to do, if it is a node.
        pub engagement: Engagement,
    }
}

impl Message for Return {
    const TAG: &'static str = "return";
}

wire! {
    /// A member goes for good.
    pub struct Leave {
        /// Ledger height at which it left.
        pub height: Height,
    }
}

impl Message for Leave {
    const TAG: &'static str = "leave";
}

wire! {
    /// A node has fetched trunk and row at a sealed state, and can take a seat.
    pub struct Ready {
        /// It has the state before this round.
        pub round: Round,
        /// The row that it was drawn for.
        pub row: Row,
        /// Root of that state.
        pub root: Digest,
    }
}

impl Message for Ready {
    const TAG: &'static str = "ready";
}

wire! {
    /// Signed by the organiser: from the record that holds it on, nobody comes by this member or by those below it.
    pub struct CloseTree {
        /// Whose tree of invitations.
        pub member: MemberId,
    }
}

impl Message for CloseTree {
    const TAG: &'static str = "close-tree";
}

/// The secret half of an invitation's key. Wiped on drop, never shown.
#[derive(Clone, PartialEq, Eq, BorshSerialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct InvitationSecret([u8; 32]);

impl InvitationSecret {
    /// Of 32 random bytes, used for one invitation only.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// What the invitation names.
    pub fn key(&self) -> MemberId {
        Identity::from_secret(&self.0).id()
    }

    /// For the line that is handed to people, and nothing else.
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Proves to the run that this newcomer was given the secret.
    pub fn present(&self, run: RunId, invitation: Signed<Invitation>, newcomer: MemberId) -> Presented {
        let possession = Identity::from_secret(&self.0).sign(run, &Possession { newcomer });
        Presented { invitation, possession }
    }
}

impl BorshDeserialize for InvitationSecret {
    fn deserialize_reader<R: std::io::Read>(reader: &mut R) -> std::io::Result<Self> {
        <[u8; 32]>::deserialize_reader(reader).map(Self)
    }
}

impl Described for InvitationSecret {
    fn shape(_: &mut Schema) -> Shape {
        Shape::Raw(32)
    }
}

impl Drop for InvitationSecret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for InvitationSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InvitationSecret")
    }
}

wire! {
    /// An invitation as it is handed to people: with it anyone may enrol, as often as it says.
    pub struct Pass {
        /// The organiser's or a member's leave.
        pub invitation: Signed<Invitation>,
        /// What shows that one was meant.
        pub secret: InvitationSecret,
    }
}

impl Pass {
    /// The invitation, once signature and secret are found to fit.
    ///
    /// # Errors
    /// [`Reject`] as of [`Signed::verify`]; for a secret of another invitation.
    pub fn verify(&self, run: RunId) -> Result<Verified<Invitation>, Reject> {
        let invitation = self.invitation.verify(run)?;
        // A wrong secret would be found out only by the steward's refusal: this names the cause.
        if invitation.key != self.secret.key() {
            return Err(Reject::Rule("the secret is that of the invitation"));
        }
        Ok(invitation)
    }

    /// As [`InvitationSecret::present`].
    pub fn present(&self, run: RunId, newcomer: MemberId) -> Presented {
        self.secret.present(run, self.invitation.clone(), newcomer)
    }
}

wire! {
    /// What `muster invite` prints: where the run is, and the leave to enter it.
    pub struct Ticket {
        /// The run.
        pub run: RunId,
        /// Whom to expect at the addresses.
        pub steward: MemberId,
        /// Where the steward listens.
        pub addresses: Addresses,
        /// The organiser's or a member's leave; none where the manifest asks for none.
        pub pass: Option<Pass>,
    }
}

impl Ticket {
    /// What a newcomer shows to be let in; nothing where the ticket holds no leave.
    pub fn present(&self, newcomer: MemberId) -> Option<Presented> {
        self.pass.as_ref().map(|pass| pass.present(self.run, newcomer))
    }
}
