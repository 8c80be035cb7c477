//! Coming and going: invitations, enrolment, return, leave.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::codec::{List, Text, decode, encode};
use crate::coins::CoinTerms;
use crate::error::{Misuse, Reject};
use crate::ids::{Height, MemberId, RunId, hex};
use crate::sign::{Message, Signed};
use crate::{limits, wire};

/// A network address as text, `host:port`.
pub type Address = Text<{ limits::TEXT_BYTES }>;
/// Addresses where a member can be dialled; none for one that only dials.
pub type Addresses = List<Address, { limits::ADDRESSES }>;

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
#[borsh(use_discriminant = false)]
pub enum Role {
    /// Computes gradients.
    Node,
    /// Recomputes them.
    Verifier,
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
    /// Signed by the organiser, or by a member for nodes: whoever shows it may enrol.
    pub struct Invitation {
        /// As what.
        pub role: Role,
        /// How many members may use it.
        pub uses: u32,
        /// Unix time in seconds after which the steward refuses it.
        pub expires: u64,
        /// Makes it unique.
        pub nonce: [u8; 16],
        /// Whether they have weight from the beginning. Only the organiser says so.
        pub founder: bool,
    }
}

impl Message for Invitation {
    const TAG: &'static str = "invitation";
}

wire! {
    /// Signed by a newcomer with its own key.
    pub struct Enrol {
        /// By whose leave; none where the manifest lists the newcomer, or lets everyone come.
        pub invitation: Option<Signed<Invitation>>,
        /// Where it can be dialled.
        pub addresses: Addresses,
        /// A verifier's coins; none for a node.
        pub coins: Option<CoinTerms>,
    }
}

impl Message for Enrol {
    const TAG: &'static str = "enrol";
}

wire! {
    /// A member that was away is back.
    pub struct Return {
        /// Ledger height that it has caught up to; keeps an old return from being replayed.
        pub height: Height,
        /// Where it can be dialled now.
        pub addresses: Addresses,
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
    /// Signed by the organiser: from the record that holds it on, nobody comes by this member or by those below it.
    pub struct CloseTree {
        /// Whose tree of invitations.
        pub member: MemberId,
    }
}

impl Message for CloseTree {
    const TAG: &'static str = "close-tree";
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
        pub invitation: Option<Signed<Invitation>>,
    }
}

const TICKET_PREFIX: &str = "muster1:";

impl Ticket {
    /// One line of text.
    pub fn to_line(&self) -> String {
        format!("{TICKET_PREFIX}{}", hex(&encode(self)))
    }

    /// Reads the line.
    ///
    /// # Errors
    /// [`Misuse`] when it is no ticket or was cut.
    pub fn from_line(line: &str) -> Result<Self, Misuse> {
        let text = line.trim().strip_prefix(TICKET_PREFIX);
        let digits = text.ok_or_else(|| Misuse(format!("an invitation starts with {TICKET_PREFIX:?}")))?;
        let cut = |why: &str| Misuse(format!("the invitation is damaged ({why}): copy the whole line again"));
        if !digits.is_ascii() || !digits.len().is_multiple_of(2) {
            return Err(cut("a character is missing"));
        }
        let pairs = digits.as_bytes().chunks(2).map(|pair| core::str::from_utf8(pair).ok());
        let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
        let bytes = bytes.ok_or_else(|| cut("not hexadecimal"))?;
        decode(&bytes).map_err(|reject: Reject| cut(&reject.to_string()))
    }
}
