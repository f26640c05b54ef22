------------------------------ MODULE KVBlocks ------------------------------
(***************************************************************************)
(* The core of a paged KV-cache allocator: allocate, append and free, on   *)
(* demand, with refusals.                                                  *)
(*                                                                         *)
(* It says the same as kvspec's core, in another language and from scratch *)
(* so that two readings of the conventions can be compared: TLC counts as  *)
(* many states as an explorer of kvspec's specification does. The blocks   *)
(* of a sequence are a set here; in which order a table has them makes no  *)
(* difference up to the names of blocks.                                   *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
    Blocks,      \* the pool
    Sequences,   \* the ids that a caller may use
    BlockSize,   \* tokens a block
    MaxTokens    \* the greatest length of a sequence

VARIABLES
    length,      \* of each sequence, in tokens; None where the id is not in use
    held,        \* the blocks of each sequence
    answer       \* what the last call was answered

vars == <<length, held, answer>>

None == -1

Live == {s \in Sequences : length[s] # None}

Free == Blocks \ UNION {held[s] : s \in Sequences}

\* The fewest blocks that hold so many tokens: the ceiling of tokens / BlockSize.
BlocksFor(tokens) == (tokens + BlockSize - 1) \div BlockSize

\* Any free blocks will do, as many as are asked for.
Choices(count) == {chosen \in SUBSET Free : Cardinality(chosen) = count}

-----------------------------------------------------------------------------

Init ==
    /\ length = [s \in Sequences |-> None]
    /\ held = [s \in Sequences |-> {}]
    /\ answer = "none"

Refuse ==
    /\ answer' = "refused"
    /\ UNCHANGED <<length, held>>

\* Sequence s is to have so many tokens: it takes what it lacks, or is refused and as it was.
Reserve(s, tokens) ==
    LET lacks == BlocksFor(tokens) - Cardinality(held[s])
    IN IF lacks <= Cardinality(Free)
       THEN \E chosen \in Choices(lacks) :
                /\ length' = [length EXCEPT ![s] = tokens]
                /\ held' = [held EXCEPT ![s] = @ \union chosen]
                /\ answer' = "done"
       ELSE Refuse

Allocate(s, tokens) ==
    /\ s \notin Live
    /\ Reserve(s, tokens)

Append(s, tokens) ==
    /\ s \in Live
    /\ length[s] + tokens <= MaxTokens
    /\ Reserve(s, length[s] + tokens)

FreeAll(s) ==
    /\ s \in Live
    /\ length' = [length EXCEPT ![s] = None]
    /\ held' = [held EXCEPT ![s] = {}]
    /\ answer' = "done"

Next ==
    \E s \in Sequences :
        \/ FreeAll(s)
        \/ \E tokens \in 0..MaxTokens : Allocate(s, tokens) \/ Append(s, tokens)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

TypeOK ==
    /\ length \in [Sequences -> {None} \union 0..MaxTokens]
    /\ held \in [Sequences -> SUBSET Blocks]
    /\ answer \in {"none", "done", "refused"}

NoOverlap == \A s, t \in Sequences : s # t => held[s] \intersect held[t] = {}

BoundedWaste ==
    \A s \in Live :
        LET waste == Cardinality(held[s]) * BlockSize - length[s]
        IN 0 <= waste /\ waste < BlockSize

NoLeak ==
    /\ \A s \in Sequences \ Live : held[s] = {}
    /\ Cardinality(Free) + Cardinality(UNION {held[s] : s \in Live}) = Cardinality(Blocks)

\* What the names of blocks and sequences are makes no difference.
Symmetry == Permutations(Blocks) \union Permutations(Sequences)
=============================================================================
