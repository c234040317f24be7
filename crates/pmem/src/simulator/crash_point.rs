//! One moment at which power may fail, and the images that may result.

use super::choices::{Choice, choices};
use super::log::{StoreKind, Unit, Words};
use super::{Model, line_of};
use crate::{BLOCK_BYTES, Pos};
use std::borrow::Cow;
use std::collections::HashSet;

/// A store to one aligned word, or to some bytes of it, that is not durable yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The word.
    pub word: Pos,
    /// The store operation that it is part of; operations are numbered in order.
    pub store: u64,
}

/// A moment at which power may fail: the durable and the pending stores.
///
/// A unit is a store to one aligned 8-byte word: whole or absent after the crash.
#[derive(Clone)]
pub struct CrashPoint<'a> {
    model: Model,
    memory: Cow<'a, [u8]>,
    pending: Cow<'a, [Unit]>,
    durable: Cow<'a, Words>,
    touched: Cow<'a, [bool]>,
}

impl<'a> CrashPoint<'a> {
    pub(super) fn new(
        model: Model,
        memory: Cow<'a, [u8]>,
        pending: Cow<'a, [Unit]>,
        durable: Cow<'a, Words>,
        touched: Cow<'a, [bool]>,
    ) -> CrashPoint<'a> {
        CrashPoint { model, memory, pending, durable, touched }
    }

    /// A copy that outlives the hook.
    pub fn into_owned(self) -> CrashPoint<'static> {
        CrashPoint {
            model: self.model,
            memory: Cow::Owned(self.memory.into_owned()),
            pending: Cow::Owned(self.pending.into_owned()),
            durable: Cow::Owned(self.durable.into_owned()),
            touched: Cow::Owned(self.touched.into_owned()),
        }
    }

    /// The model of what may happen to the pending stores.
    pub fn model(&self) -> Model {
        self.model
    }

    /// Number of pending stores of words.
    pub fn pending_units(&self) -> usize {
        self.pending.len()
    }

    /// The pending stores, in order.
    pub fn pending(&self) -> impl ExactSizeIterator<Item = Pending> + '_ {
        self.pending.iter().map(|unit| Pending { word: unit.word, store: unit.store })
    }

    /// The region as the program saw it: all pending stores arrived.
    pub fn memory(&self) -> &[u8] {
        &self.memory
    }

    /// The pending stores that arrived: those for which `arrived` returns true, and those that the model
    /// requires before them.
    pub fn choose(&self, arrived: impl FnMut(usize) -> bool) -> Vec<bool> {
        let mut choice: Choice = (0..self.pending.len()).map(arrived).collect();
        self.close(&mut choice);
        choice
    }

    /// The words in which the image of a choice made by [`CrashPoint::choose`] differs from
    /// [`CrashPoint::memory`], in order.
    pub fn words(&self, choice: &[bool]) -> Vec<(Pos, u64)> {
        let mut words: Vec<(Pos, u64)> = self.words_of(choice).into_iter().collect();
        words.retain(|(at, word)| self.memory[at.0 as usize..][..8] != word.to_le_bytes());
        words.sort_unstable();
        words
    }

    /// The region if no pending store arrived.
    pub fn durable_image(&self) -> Vec<u8> {
        self.image(|_| false)
    }

    /// The region if all of them arrived: as the program saw it.
    pub fn full_image(&self) -> Vec<u8> {
        self.memory.to_vec()
    }

    /// The region if the pending stores arrived for which `arrived` returns true, in the order of their
    /// stores, and with them those that the model requires before them.
    pub fn image(&self, arrived: impl FnMut(usize) -> bool) -> Vec<u8> {
        self.image_of(&self.choose(arrived))
    }

    /// The images of many choices, all different. If there are at most `limit` choices, all of them.
    /// Otherwise none, all, and each store operation and each unit alone and left out, up to three quarters
    /// of `limit`; then random ones. The same `seed` gives the same images.
    pub fn images(&self, limit: usize, seed: u64) -> impl Iterator<Item = Vec<u8>> + '_ {
        let stores: Vec<u64> = self.pending.iter().map(|unit| unit.store).collect();
        choices(&stores, limit, seed, |choice| self.close(choice))
            .into_iter()
            .map(|choice| self.image_of(&choice))
    }

    /// As [`CrashPoint::images`], each as the words in which it differs from `start`, the region's content at
    /// the beginning.
    ///
    /// Panics if `start` has another length.
    pub fn differences<'b>(
        &'b self,
        start: &'b [u8],
        limit: usize,
        seed: u64,
    ) -> impl Iterator<Item = Vec<(Pos, u64)>> + 'b {
        assert_eq!(start.len(), self.memory.len(), "an image of another length");
        let word =
            |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let touched = self.touched.iter().enumerate().filter(|(_, touched)| **touched);
        let words =
            touched.flat_map(|(block, _)| (block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES).step_by(8));
        let stored: Vec<(Pos, u64)> = words
            .map(|at| (Pos(at as u64), word(&self.memory, at)))
            .filter(|(at, now)| *now != word(start, at.0 as usize) || self.durable.contains_key(at))
            .collect();
        let stores: Vec<u64> = self.pending.iter().map(|unit| unit.store).collect();
        choices(&stores, limit, seed, |choice| self.close(choice)).into_iter().map(move |choice| {
            let pending = self.words_of(&choice);
            let then = |(at, now): &(Pos, u64)| (*at, pending.get(at).copied().unwrap_or(*now));
            stored.iter().map(then).filter(|(at, then)| *then != word(start, at.0 as usize)).collect()
        })
    }

    /// Adds to a choice the stores that the model requires before those in it.
    fn close(&self, choice: &mut [bool]) {
        let mut reached = HashSet::new();
        let mut any = false;
        for (unit, chosen) in self.pending.iter().zip(choice).rev() {
            match self.model {
                Model::Pessimistic => {}
                Model::Eadr | Model::Process => {
                    any |= *chosen;
                    *chosen = any;
                }
                Model::Ordered if unit.kind == StoreKind::Cached => {
                    if *chosen {
                        reached.insert(line_of(unit.word));
                    }
                    *chosen = reached.contains(&line_of(unit.word));
                }
                Model::Ordered => {}
            }
        }
    }

    /// Each word with a pending store, with its value in that case.
    fn words_of(&self, choice: &[bool]) -> Words {
        let mut words = self.durable.clone().into_owned();
        for (unit, _) in self.pending.iter().zip(choice).filter(|(_, chosen)| **chosen) {
            let word = words.get_mut(&unit.word).expect("a pending word has a durable value");
            *word = unit.applied_to(*word);
        }
        words
    }

    fn image_of(&self, choice: &[bool]) -> Vec<u8> {
        let mut image = self.memory.to_vec();
        for (at, word) in self.words_of(choice) {
            image[at.0 as usize..][..8].copy_from_slice(&word.to_le_bytes());
        }
        image
    }
}

impl std::fmt::Debug for CrashPoint<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "CrashPoint {{ {:?}, {} units pending }}", self.model, self.pending.len())
    }
}
