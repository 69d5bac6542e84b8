//! An enumeration of every death of a client, of the next one, and of the one after that.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use guira_conformance::{BatchForms, Bench, Examiner, Observed as Answer, Op};
use guira_layout::OwnerId;

use crate::recovery::audit::{
    Recoverer, State, Universe, check_marks, check_reclaimed, check_sound, give_back, recover_all,
};
use crate::recovery::fixture::Case;
use crate::recovery::image::{Image, ImageSet};
use crate::recovery::lane::{Log, LoggedLane};
use crate::recovery::lifecycle::{ScriptRun, run_script};

/// Most successive deaths that are enumerated; then a client survives.
pub const DEPTH: usize = 3;
/// Threads: as many as the smallest machine that runs the tests has.
const THREADS: usize = 2;

/// Counts of the enumeration of one case.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub name: String,
    /// Steps at which clients could die.
    pub steps: u64,
    /// Different memories that the first, second and third death left, in each of which a client survived.
    pub memories: [u64; DEPTH],
    /// Different memories in which all dead clients were recovered, and everything was checked.
    pub audits: u64,
    pub recoveries: u64,
    pub replays: u64,
    pub moves: u64,
}

/// The deaths in cases whose first clients change the same words in the same order, and are followed by the same
/// others: they leave the same memories, and differ only in what these may hold. So each memory is created once, and
/// compared with what each of the cases allows.
struct Enumeration<'s> {
    cases: &'s [&'s Case],
    /// Whether another enumeration has failed, so that this one ends, too.
    is_over: &'s AtomicBool,
    /// Steps of the first client of each case.
    first_steps: Vec<u64>,
    /// A region for this enumeration alone.
    bench: Bench,
    universe: Universe,
    seen: [ImageSet; DEPTH],
    survived: ImageSet,
    audited: ImageSet,
    given_back: ImageSet,
    /// The change at which each of the dead clients died.
    path: Vec<usize>,
    counts: Counts,
}

impl Enumeration<'_> {
    fn context(&self) -> String {
        let names: Vec<&str> = self.cases.iter().map(|case| case.name.as_str()).collect();
        format!("{}: clients died after changes {:?}", names.join(" = "), self.path)
    }

    fn demand<T>(&self, result: Result<T, impl std::fmt::Display>) -> T {
        result.unwrap_or_else(|wrong| panic!("{}: {wrong}", self.context()))
    }

    fn check_contents(&mut self, image: &Image, states: &[Vec<State>]) {
        for states in states {
            let contents = self.universe.check_image(&self.bench, image, states);
            self.demand(contents);
        }
    }

    /// Runs the script of the next client in memory `image`, and returns its answers in each case. All clients but the
    /// first run the same script in all of them.
    fn run_script(&mut self, image: &Image) -> (ScriptRun, Vec<Vec<Answer>>) {
        let deaths = self.path.len();
        let different = if deaths == 0 { self.cases } else { &self.cases[..1] };
        let mut all: Vec<ScriptRun> = Vec::new();
        for case in different {
            image.load(&self.bench);
            let run = self.demand(run_script(&self.bench, &case.scripts[deaths], LoggedLane::new(&self.bench.region)));
            let same = all.first().is_none_or(|first| leaves_the_same(first, &run));
            assert!(same, "{}: different changes", self.context());
            all.push(run);
        }
        if deaths == 0 {
            self.first_steps = all.iter().map(|run| run.log.steps).collect();
        }
        let answers = |run: &ScriptRun| run.answers.iter().map(|answer| self.demand(answer.clone())).collect();
        let mut answers: Vec<Vec<Answer>> = all.iter().map(answers).collect();
        answers.resize(self.cases.len(), answers[0].clone());
        (all.swap_remove(0), answers)
    }

    /// Runs the script of the next client in memory `image`, whose possible `states` are given for each case, and
    /// explores each of its deaths.
    fn explore(&mut self, image: &Image, states: &[Vec<State>]) {
        let deaths = self.path.len();
        let (run, answers) = self.run_script(image);
        self.counts.recoveries += run.counters.recoveries;
        self.counts.replays += run.counters.replays;
        if deaths == 0 {
            self.counts.moves = run.counters.moves;
        }
        let mut last = states.to_vec();
        for ((case, answers), states) in self.cases.iter().zip(&answers).zip(&mut last) {
            for (op, answer) in case.scripts[deaths].ops.iter().zip(answers) {
                *states = self.universe.answered(states, op, answer);
                assert!(!states.is_empty(), "{}: {op:x?} cannot be answered with {answer:x?}", self.context());
            }
        }
        let mut after = image.clone();
        run.log.written.iter().for_each(|written| after.apply(written));
        if self.survived.insert(after.hash()) {
            self.survive(after, &last);
        }
        if deaths < DEPTH.min(self.cases[0].deaths) {
            self.counts.steps += run.log.steps;
            self.die(image, &run, &answers, states);
        }
    }

    /// Checks the memory `image` of a survivor, and again once all dead clients are recovered.
    fn survive(&mut self, mut image: Image, states: &[Vec<State>]) {
        self.check_contents(&image, states);
        recover_all(&self.bench).iter().for_each(|written| image.apply(written));
        if self.audited.insert(image.hash()) {
            self.counts.audits += 1;
            self.check_contents(&image, states);
            self.demand(self.bench.audit_idle());
            let lost = self.demand(check_sound(&self.bench));
            if lost > 0 {
                self.give_back(image, lost, states);
            }
        }
    }

    /// Checks memory `image` once its `lost` unreferenced extents are reclaimed. Several memories become equal by that,
    /// and one check is enough for them.
    fn give_back(&mut self, mut image: Image, lost: u64, states: &[Vec<State>]) {
        self.demand(give_back(&self.bench)).iter().for_each(|written| image.apply(written));
        if self.given_back.insert(image.hash()) {
            self.demand(check_reclaimed(&self.bench, lost));
        }
        self.check_contents(&image, states);
    }

    /// Returns the possible states when a client that carried out `ops` dies after `changes` changes: some of them were
    /// answered, and the next one is pending.
    fn possible(
        &mut self,
        ops: &[Op],
        answers: &[Answer],
        states: &[State],
        answered_at: &[usize],
        changes: usize,
    ) -> Vec<State> {
        let mut possible = states.to_vec();
        for ((op, answer), at) in ops.iter().zip(answers).zip(answered_at) {
            if *at > changes {
                return possible.into_iter().map(|state| state.with_pending(op)).collect();
            }
            possible = self.universe.answered(&possible, op, answer);
        }
        possible
    }

    /// Explores each death of the client with this `run` in memory `image`.
    fn die(&mut self, image: &Image, run: &ScriptRun, answers: &[Vec<Answer>], states: &[Vec<State>]) {
        let deaths = self.path.len();
        let Log { written, .. } = &run.log;
        let mut recoverer = Recoverer::new(&self.bench, OwnerId::of_slot(self.cases[0].scripts[deaths].slot()));
        let mut memory = image.clone();
        for (i, change) in written.iter().enumerate() {
            memory.apply(change);
            self.path.push(i + 1);
            self.demand(recoverer.saw(&self.bench, change, &memory));
            let is_step = written.get(i + 1).is_none_or(|next| next.is_step);
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            if is_step && self.seen[deaths].insert(memory.hash()) {
                self.counts.memories[deaths] += 1;
                self.demand(check_marks(&self.bench, &memory));
                let possible: Vec<Vec<State>> = (0..self.cases.len())
                    .map(|case| {
                        let ops = &self.cases[case].scripts[deaths].ops;
                        self.possible(ops, &answers[case], &states[case], &run.answered_at, i + 1)
                    })
                    .collect();
                self.explore(&memory, &possible);
            }
            self.path.pop();
        }
    }
}

/// Whether two clients changed the same words, in the same order, and were answered at the same times.
fn leaves_the_same(a: &ScriptRun, b: &ScriptRun) -> bool {
    a.log.written == b.log.written && a.answered_at == b.answered_at
}

/// Groups of cases that leave the same memories: see [`Enumeration`].
fn groups<'s>(cases: &[&'s Case]) -> Vec<Vec<&'s Case>> {
    let mut groups: Vec<(ScriptRun, Vec<&Case>)> = Vec::new();
    for case in cases {
        let bench = case.filled.bench.fork();
        let run = run_script(&bench, &case.scripts[0], LoggedLane::new(&bench.region)).expect("a free slot");
        let belongs = |(first, others): &&mut (ScriptRun, Vec<&Case>)| {
            let other = others[0];
            let follows = other.scripts[1..] == case.scripts[1..] && other.scripts[0].slot() == case.scripts[0].slot();
            let same_table = Arc::ptr_eq(&other.filled, &case.filled) && other.deaths == case.deaths;
            same_table && follows && leaves_the_same(first, &run)
        };
        match groups.iter_mut().find(belongs) {
            Some((_, others)) => others.push(case),
            None => groups.push((run, vec![case])),
        }
    }
    groups.into_iter().map(|(_, cases)| cases).collect()
}

/// Returns the memories that the first client of `case` leaves if it dies at any step, in order.
pub fn memories(case: &Case) -> Vec<Image> {
    let bench = case.filled.bench.fork();
    let mut memory = Image::of(&bench);
    let run = run_script(&bench, &case.scripts[0], LoggedLane::new(&bench.region)).expect("a free slot");
    let written = &run.log.written;
    let mut memories = Vec::new();
    for (i, change) in written.iter().enumerate() {
        memory.apply(change);
        if written.get(i + 1).is_none_or(|next| next.is_step) {
            memories.push(memory.clone());
        }
    }
    memories
}

/// Has the batches examined that the clients of `cases` post: the first one of each, and the next one after each death
/// of the first.
pub fn examine(cases: &[Case], forms: &BatchForms) {
    for case in cases {
        let bench = case.filled.bench.fork();
        let lane = || LoggedLane::new(&bench.region).examined(Examiner::new(&bench, forms));
        run_script(&bench, &case.scripts[0], lane()).expect("a free slot");
        for memory in memories(case) {
            memory.load(&bench);
            run_script(&bench, &case.scripts[1], lane()).expect("a free slot");
        }
    }
}

/// A guard that ends all enumerations when its own panics.
struct EndAll<'s>(&'s AtomicBool);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

/// Enumerates every death in `cases`, which leave the same memories, unless `is_over`; returns the counts of each case.
fn enumerate(cases: &[&Case], is_over: &AtomicBool) -> Vec<Counts> {
    let _end_all = EndAll(is_over);
    let case = cases[0];
    let mut enumeration = Enumeration {
        cases,
        is_over,
        first_steps: Vec::new(),
        bench: case.filled.bench.fork(),
        universe: Universe::new(&case.filled.model),
        seen: Default::default(),
        survived: ImageSet::default(),
        audited: ImageSet::default(),
        given_back: ImageSet::default(),
        path: Vec::new(),
        counts: Counts::default(),
    };
    let image = Image::of(&enumeration.bench);
    enumeration.explore(&image, &vec![vec![State::default()]; cases.len()]);
    let Enumeration { counts, first_steps, .. } = enumeration;
    let rest = counts.steps - first_steps[0];
    let of_case =
        |(case, steps): (&&Case, u64)| Counts { name: case.name.clone(), steps: rest + steps, ..counts.clone() };
    cases.iter().zip(first_steps).map(of_case).collect()
}

/// Enumerates every death in all of `cases`, until something is wrong, and prints the counts.
pub fn enumerate_all(title: &str, cases: &[Case]) -> Vec<Counts> {
    let wanted = std::env::var("GUIRA_CASE").unwrap_or_default();
    let cases: Vec<&Case> = cases.iter().filter(|case| case.name.contains(&wanted)).collect();
    let groups = groups(&cases);
    let (next, is_over, all) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut counts = enumerate(group, &is_over);
                    all.lock().expect("no enumeration panics with it").append(&mut counts);
                }
            });
        }
    });
    let mut all = all.into_inner().expect("no enumeration panicked");
    let place = |counts: &Counts| cases.iter().position(|case| case.name == counts.name);
    all.sort_by_key(place);
    print(title, &all);
    all
}

/// Asserts that at least this many different memories were left by a third death, and this many records replayed.
pub fn demand_cases(all: &[Counts], third_deaths: u64, replays: u64) {
    if std::env::var_os("GUIRA_CASE").is_none() {
        let memories: u64 = all.iter().map(|counts| counts.memories[DEPTH - 1]).sum();
        let replayed: u64 = all.iter().map(|counts| counts.replays).sum();
        assert!(memories >= third_deaths && replayed >= replays, "{memories} memories, {replayed} replays");
    }
}

fn print(title: &str, all: &[Counts]) {
    let line = |name: &str, cells: [String; 7]| {
        let cells: String = cells.iter().map(|cell| format!("{cell:>10}")).collect();
        format!("{name:<44}{cells}\n")
    };
    let heads = ["steps", "1 death", "2 deaths", "3 deaths", "audits", "recovered", "replayed"];
    let mut text = line(title, heads.map(str::to_owned));
    let mut total = Counts { name: "all".to_owned(), ..Counts::default() };
    let cells = |it: &Counts| {
        let [one, two, three] = it.memories;
        [it.steps, one, two, three, it.audits, it.recoveries, it.replays].map(|count| count.to_string())
    };
    for counts in all {
        text += &line(&counts.name, cells(counts));
        total.steps += counts.steps;
        total.audits += counts.audits;
        total.recoveries += counts.recoveries;
        total.replays += counts.replays;
        total.memories.iter_mut().zip(counts.memories).for_each(|(sum, memories)| *sum += memories);
    }
    println!("{text}{}", line("all", cells(&total)));
}
