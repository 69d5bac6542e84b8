//! Every death of a client, of whoever comes next, and of whoever comes then.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use guira_conformance::{Bench, Seen as Answer};
use guira_layout::OwnerId;

use crate::recovery::audit::{Recoverer, State, Universe, check_marks, check_recovered, recover_all};
use crate::recovery::image::{Image, Seen};
use crate::recovery::lane::{Log, LoggedLane};
use crate::recovery::life::{Lived, live};
use crate::recovery::scene::Shape;

/// Successive deaths that are enumerated, at most: then somebody survives.
pub const DEPTH: usize = 3;
/// Threads: those of the smallest machine that runs the tests.
const THREADS: usize = 2;

/// What was enumerated for one shape.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub name: String,
    /// Steps at which clients could die.
    pub steps: u64,
    /// Different memories that the first, second and third death left, each of which got a survivor.
    pub memories: [u64; DEPTH],
    /// Different memories in which everybody left was recovered, and everything looked at.
    pub audits: u64,
    pub recoveries: u64,
    pub replays: u64,
    pub moves: u64,
}

struct Enumeration<'s> {
    shape: &'s Shape,
    /// Whether another one has found something wrong: then this one ends, too.
    is_over: &'s AtomicBool,
    /// A region of this enumeration alone.
    bench: Bench,
    universe: Universe,
    seen: [Seen; DEPTH],
    survived: Seen,
    audited: Seen,
    /// At which change each of the dead died.
    path: Vec<usize>,
    counts: Counts,
}

impl Enumeration<'_> {
    fn context(&self) -> String {
        format!("{}: clients died after changes {:?}", self.shape.name, self.path)
    }

    fn demand<T>(&self, result: Result<T, impl std::fmt::Display>) -> T {
        result.unwrap_or_else(|wrong| panic!("{}: {wrong}", self.context()))
    }

    fn check_contents(&mut self, states: &[State]) {
        let contents = self.universe.check_contents(&self.bench, states);
        self.demand(contents);
    }

    /// The life of the next client, in memory `image`, in which `states` may be; and each of its deaths.
    fn explore(&mut self, image: &Image, states: &[State]) {
        let deaths = self.path.len();
        let life = &self.shape.lives[deaths];
        image.load(&self.bench);
        let lived = self.demand(live(&self.bench, life, LoggedLane::new(&self.bench.region)));
        self.counts.recoveries += lived.counters.recoveries;
        self.counts.replays += lived.counters.replays;
        if deaths == 0 {
            self.counts.moves = lived.counters.moves;
        }
        let answers: Vec<Answer> = lived.answers.iter().map(|answer| self.demand(answer.clone())).collect();
        let mut stages = vec![states.to_vec()];
        for (op, answer) in life.ops.iter().zip(&answers) {
            let after = self.universe.answered(&stages[stages.len() - 1], op, answer);
            assert!(!after.is_empty(), "{}: {op:x?} cannot be answered with {answer:x?}", self.context());
            stages.push(after);
        }
        let mut after = image.clone();
        lived.log.written.iter().for_each(|written| after.apply(written));
        if self.survived.insert(after.hash()) {
            self.survive(&stages[stages.len() - 1]);
        }
        if deaths < DEPTH.min(self.shape.deaths) {
            self.counts.steps += lived.log.steps;
            self.die(image, &lived, &answers, states);
        }
    }

    /// What must hold after somebody survived, and once all the dead are recovered.
    fn survive(&mut self, states: &[State]) {
        self.check_contents(states);
        recover_all(&self.bench);
        if self.audited.insert(Image::of(&self.bench).hash()) {
            self.counts.audits += 1;
            self.check_contents(states);
            self.demand(check_recovered(&self.bench));
            self.check_contents(states);
        }
    }

    /// Each death of the client that lived so in memory `image`.
    fn die(&mut self, image: &Image, lived: &Lived, answers: &[Answer], states: &[State]) {
        let deaths = self.path.len();
        let life = &self.shape.lives[deaths];
        let Log { written, .. } = &lived.log;
        let mut recoverer = Recoverer::new(&self.bench, OwnerId::of_slot(life.slot()));
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
                let mut possible = states.to_vec();
                for (n, op) in life.ops.iter().enumerate() {
                    if lived.answered_at[n] > i + 1 {
                        possible = possible.into_iter().map(|state| state.with_pending(op)).collect();
                        break;
                    }
                    possible = self.universe.answered(&possible, op, &answers[n]);
                }
                self.explore(&memory, &possible);
            }
            self.path.pop();
        }
    }
}

/// The memories that the first client of `shape` leaves if it dies at any step, in order.
pub fn memories(shape: &Shape) -> Vec<Image> {
    let bench = shape.stage.bench.fork();
    let mut memory = Image::of(&bench);
    let lived = live(&bench, &shape.lives[0], LoggedLane::new(&bench.region)).expect("a free slot");
    let written = &lived.log.written;
    let mut memories = Vec::new();
    for (i, change) in written.iter().enumerate() {
        memory.apply(change);
        if written.get(i + 1).is_none_or(|next| next.is_step) {
            memories.push(memory.clone());
        }
    }
    memories
}

/// Ends all enumerations when the one that has it panics.
struct EndAll<'s>(&'s AtomicBool);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

/// Every death in `shape`, unless `is_over`.
fn enumerate(shape: &Shape, is_over: &AtomicBool) -> Counts {
    let _end_all = EndAll(is_over);
    let mut enumeration = Enumeration {
        shape,
        is_over,
        bench: shape.stage.bench.fork(),
        universe: Universe::new(&shape.stage.model),
        seen: Default::default(),
        survived: Seen::default(),
        audited: Seen::default(),
        path: Vec::new(),
        counts: Counts { name: shape.name.clone(), ..Counts::default() },
    };
    let image = Image::of(&enumeration.bench);
    enumeration.explore(&image, &[State::default()]);
    enumeration.counts
}

/// Every death in all of `shapes`, or until something is wrong; prints what was enumerated.
pub fn enumerate_all(title: &str, shapes: &[Shape]) -> Vec<Counts> {
    let wanted = std::env::var("GUIRA_SHAPE").unwrap_or_default();
    let shapes: Vec<&Shape> = shapes.iter().filter(|shape| shape.name.contains(&wanted)).collect();
    let (next, is_over, all) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(shape) = shapes.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let counts = enumerate(shape, &is_over);
                    all.lock().expect("no enumeration panics with it").push(counts);
                }
            });
        }
    });
    let mut all = all.into_inner().expect("no enumeration panicked");
    let place = |counts: &Counts| shapes.iter().position(|shape| shape.name == counts.name);
    all.sort_by_key(place);
    print(title, &all);
    all
}

/// Demands that so many different memories were left by a third death, and so many records replayed.
pub fn demand_cases(all: &[Counts], third_deaths: u64, replays: u64) {
    if std::env::var_os("GUIRA_SHAPE").is_none() {
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
