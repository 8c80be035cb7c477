//! The cryptography behind snow: X25519 of x25519-dalek, AEADs and SHA-256 of AWS-LC, ephemeral keys from a seed.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::digest;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

/// Bytes that a frame is longer than its text.
pub(super) const TAG_BYTES: usize = 16;

/// Resolves the names of the two suites. Each seed serves one handshake.
pub(super) struct Primitives {
    pub(super) seed: Zeroizing<[u8; 32]>,
}

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn types::Random>> {
        Some(Box::new(SeededRng(ChaCha20Rng::from_seed(*self.seed))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn types::Dh>> {
        // A placeholder: snow sets or generates the key before it is used.
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(X25519::of([0; 32])) as Box<dyn types::Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn types::Hash>> {
        matches!(choice, HashChoice::SHA256)
            .then(|| Box::new(Sha256(digest::Context::new(&digest::SHA256))) as Box<dyn types::Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn types::Cipher>> {
        let kind = match choice {
            CipherChoice::AESGCM => Aead::AesGcm,
            CipherChoice::ChaChaPoly => Aead::ChaChaPoly,
        };
        // A placeholder, too: snow sets the key before a byte is sealed.
        Some(Box::new(Cipher { kind, key: kind.key(&[0; 32]) }))
    }
}

struct SeededRng(ChaCha20Rng);

impl types::Random for SeededRng {
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), Error> {
        self.0.fill_bytes(into);
        Ok(())
    }
}

struct X25519 {
    secret: StaticSecret,
    public: PublicKey,
}

impl X25519 {
    fn of(secret: [u8; 32]) -> Self {
        let secret = StaticSecret::from(secret);
        Self { public: PublicKey::from(&secret), secret }
    }
}

impl types::Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, secret: &[u8]) {
        *self = Self::of(secret.try_into().expect("a channel secret has 32 bytes"));
    }

    fn generate(&mut self, random: &mut dyn types::Random) -> Result<(), Error> {
        let mut secret = Zeroizing::new([0; 32]);
        random.try_fill_bytes(&mut *secret)?;
        *self = Self::of(*secret);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        self.public.as_bytes()
    }

    fn privkey(&self) -> &[u8] {
        self.secret.as_bytes()
    }

    /// CHAN-5: fails on points of small order, which would make the shared secret a constant.
    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public = public.first_chunk::<32>().ok_or(Error::Dh)?;
        let shared = self.secret.diffie_hellman(&PublicKey::from(*public));
        if !shared.was_contributory() {
            return Err(Error::Dh);
        }
        out.first_chunk_mut::<32>().ok_or(Error::Dh)?.copy_from_slice(shared.as_bytes());
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Aead {
    AesGcm,
    ChaChaPoly,
}

impl Aead {
    fn key(self, key: &[u8; 32]) -> LessSafeKey {
        let algorithm = match self {
            Self::AesGcm => &aead::AES_256_GCM,
            Self::ChaChaPoly => &aead::CHACHA20_POLY1305,
        };
        LessSafeKey::new(UnboundKey::new(algorithm, key).expect("both AEADs take 32 bytes of key"))
    }

    /// Four zero bytes and the number, in the byte order that Noise gives each AEAD.
    fn nonce(self, number: u64) -> Nonce {
        let mut nonce = [0; 12];
        let number = match self {
            Self::AesGcm => number.to_be_bytes(),
            Self::ChaChaPoly => number.to_le_bytes(),
        };
        nonce[4..].copy_from_slice(&number);
        Nonce::assume_unique_for_key(nonce)
    }
}

struct Cipher {
    kind: Aead,
    key: LessSafeKey,
}

impl types::Cipher for Cipher {
    fn name(&self) -> &'static str {
        match self.kind {
            Aead::AesGcm => "AESGCM",
            Aead::ChaChaPoly => "ChaChaPoly",
        }
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.key = self.kind.key(key);
    }

    /// From one buffer into the other: what is sealed or opened is not copied first.
    fn encrypt(&self, nonce: u64, bound: &[u8], text: &[u8], out: &mut [u8]) -> usize {
        let (body, rest) = out.split_at_mut(text.len());
        self.key
            .seal_out_of_place_scatter(
                self.kind.nonce(nonce),
                Aad::from(bound),
                text,
                body,
                &[],
                &mut rest[..TAG_BYTES],
            )
            .expect("a frame is far shorter than an AEAD can seal");
        text.len() + TAG_BYTES
    }

    fn decrypt(&self, nonce: u64, bound: &[u8], sealed: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let (body, tag) = sealed.split_last_chunk::<TAG_BYTES>().ok_or(Error::Decrypt)?;
        // The buffer is the caller's: too small, it must not stop the thread.
        let text = out.get_mut(..body.len()).ok_or(Error::Decrypt)?;
        self.key
            .open_separate_gather(self.kind.nonce(nonce), Aad::from(bound), body, tag, text)
            .map_err(|_| Error::Decrypt)?;
        Ok(body.len())
    }
}

struct Sha256(digest::Context);

impl types::Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = digest::Context::new(&digest::SHA256);
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(self.0.clone().finish().as_ref());
    }
}

#[cfg(test)]
mod tests {
    use snow::Builder;

    use super::*;
    use crate::channel::Suite;
    use crate::ids::{hex, unhex};

    /// Handshake hash and first frame each way of the public vectors of cacophony, a Noise in Haskell.
    const VECTORS: [(Suite, &str, &str, &str); 2] = [
        (
            Suite::AesGcm,
            "1b7aefb1125762aa21a252890d00af54519638b76437444538f9a52f21e2e0dc",
            "bc3fa77f6aca3e8466d7dc6bea10013e88a6a29add5132b461806c",
            "250b01074cdfe0df2ecf8ccbf1737b15a2ddb5b52fd9a396604e9c793cee3b3bb9",
        ),
        (
            Suite::ChaChaPoly,
            "c8e5f64e846193be2a834104c2a009868d6c9f3bd3c186299888b488b2f1f58e",
            "96763ed773f8e47bb3712f0e29b3060ffc956ffc146cee53d5e1df",
            "3e40f15f6f3a46ae446b253bf8b1d9ffb6ed9b174d272328ff91a7e2e5c79c07f5",
        ),
    ];

    #[test]
    fn agrees_with_other_implementations_of_noise() {
        let key = |text: &str| unhex::<32>(text).unwrap();
        let (static_1, ephemeral_1, static_2, ephemeral_2) = (
            key("e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1"),
            key("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a"),
            key("4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893"),
            key("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b"),
        );
        for (suite, hash, back, there) in VECTORS {
            let build = |secret, ephemeral| {
                let seed = Zeroizing::new([0; 32]);
                Builder::with_resolver(suite.noise_name().parse().unwrap(), Box::new(Primitives { seed }))
                    .prologue(b"John Galt")
                    .and_then(|builder| builder.local_private_key(secret))
                    .unwrap()
                    .fixed_ephemeral_key_for_testing_only(ephemeral)
            };
            let mut one = build(&static_1, &ephemeral_1).build_initiator().unwrap();
            let mut two = build(&static_2, &ephemeral_2).build_responder().unwrap();
            let (mut message, mut text) = ([0; 200], [0; 200]);
            let length = one.write_message(b"Ludwig von Mises", &mut message).unwrap();
            two.read_message(&message[..length], &mut text).unwrap();
            let length = two.write_message(b"Murray Rothbard", &mut message).unwrap();
            one.read_message(&message[..length], &mut text).unwrap();
            let length = one.write_message(b"F. A. Hayek", &mut message).unwrap();
            two.read_message(&message[..length], &mut text).unwrap();
            assert_eq!(hex(two.get_handshake_hash()), hash);
            let one = one.into_stateless_transport_mode().unwrap();
            let two = two.into_stateless_transport_mode().unwrap();
            // The fourth message of the vectors is the answerer's: the handshake has three.
            let length = two.write_message(0, b"Carl Menger", &mut message).unwrap();
            assert_eq!(hex(&message[..length]), back);
            let length = one.write_message(0, b"Jean-Baptiste Say", &mut message).unwrap();
            assert_eq!(hex(&message[..length]), there);
            assert_eq!(two.read_message(0, &message[..length], &mut text).unwrap(), 17);
        }
    }
}
