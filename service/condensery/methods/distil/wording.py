"""Put questions in other words: verbs' forms, and what words of documentation give way to.

People seldom ask in the words of the text that answers them. A pair that learns from questions in
those very words learns to look for them, and for nothing else.
"""

import random
import re

# What documentation says one does with things, by base form.
_VERBS = """
abort accept access achieve acquire act activate add adjust affect aggregate allocate allow alter
analyze annotate append apply approve archive arrange ask assemble assert assign assume attach
attempt authenticate avoid await backup become begin behave belong benchmark bind block boost
break bring broadcast browse build bundle bypass cache calculate call cancel capture carry cast
catch cause change check choose clean clear clone close collect combine come comment commit
communicate compare compile complete compose compress compute concatenate configure confirm
connect consider constrain construct contact contain continue contribute control convert cope copy
correct correspond count cover crawl create customize cut deactivate deal debug declare decode
decorate decrease deduplicate define delay delegate delete demonstrate deny depend deploy
deprecate derive describe deserialize detect determine develop differ disable discard disconnect
discover dispatch display divide do document double download draft draw drop dump duplicate edit
embed emit enable encode encrypt end enforce enqueue ensure enter enumerate escape establish
estimate evaluate examine exceed exclude execute exist exit expand expect explain explore export
expose express extend extract face fail favour fetch fill filter find finish fire fit fix flag
flatten flush fold follow force format forward free freeze generate get give grant group grow
guarantee guess handle happen hash help hide hint hold honor hook host identify ignore implement
import improve include increase indicate infer influence inherit initialize inject insert inspect
install instantiate instruct instrument integrate interact intercept interpolate interpret
invalidate invoke involve isolate iterate join keep kill label launch lead learn let lie limit
link list listen load locate lock log look lower maintain make manage manipulate map mark mask
match mean measure mention merge migrate mimic mirror mix mock modify monitor mount move name need
negotiate normalise normalize note notify obey obtain occur offer omit open optimize order
organize output override overwrite own package paginate parallelize parse pass patch pause perform
permit persist pick plug poll pop populate precede prefix preload prepare preprocess preserve
presume prevent preview print process produce profile promote prompt propagate protect prove
provide provision publish pull push put query queue quit quote raise randomize rank reach read
realize rebuild receive recognize record recover redefine redirect reduce refer refresh register
reject release reload rely remain remember remove rename render reopen reorder repair repeat
replace reply report represent reproduce request require rescale reserve reset reside resize
resolve respect respond restart restore restrict result resume retain retrieve retry return reuse
revert review revoke rewind rewrite roll rotate route run sample sanitize save scale scan schedule
scrape search secure see seem select send separate serialize serve set share shift ship shorten
show shuffle shut sign silence simplify simulate sit skip slice smooth solve sort spawn specify
speed spell split stack stand start state steer stop store stream strip subclass submit subscribe
subset substitute succeed suggest sum summarize support suppress suspend swap switch synchronize
tag take target tell terminate test throw tie toggle total touch trace track train transfer
transform translate treat trigger truncate trust try tune turn type typeset undo uninstall unlock
unpack unpause unregister unset update upgrade upload use validate vary verify version view visit
visualize wait wake walk want warn watch wipe wire wrap write yield zip
"""
VERBS = frozenset(_VERBS.split())
# Not by -s, -ed or -ing.
_IRREGULAR = """
written:write made:make built:build sent:send found:find kept:keep given:give taken:take
shown:show chosen:choose held:hold got:get overridden:override hidden:hide bound:bind thrown:throw
drawn:draw told:tell caught:catch broken:break frozen:freeze begun:begin seen:see learnt:learn
known:know overwritten:overwrite rewritten:rewrite rebuilt:rebuild undone:undo set:set run:run
read:read put:put split:split reset:reset let:let fit:fit cut:cut
"""
IRREGULAR = dict(pair.split(":") for pair in _IRREGULAR.split())


def _table(lines: str) -> dict[str, tuple[str, ...]]:
    pairs = (line.split(": ") for line in lines.strip().split("\n"))
    return {word.strip(): tuple(others.split(", ")) for word, others in pairs}


OTHER_VERBS = _table(
    """
    add: attach, append, put in
    allow: let, permit
    append: add
    apply: put to use
    avoid: prevent, keep away from
    build: construct, compile
    calculate: compute, work out
    call: invoke
    cause: lead to, bring about
    change: modify, alter, adjust
    check: verify, test, examine
    choose: select, pick
    clear: empty, wipe
    combine: join, merge
    compress: shrink, pack
    compute: calculate, work out
    configure: set up, set, adjust
    connect: link, attach
    contain: hold, include, have
    control: decide, govern, determine
    convert: turn, transform
    copy: duplicate
    create: make, build, set up
    customize: adapt, tailor, adjust
    decrease: lower, reduce
    define: set, lay down
    delete: remove, erase
    describe: explain, document
    determine: decide, find out, control
    disable: switch off, turn off, deactivate
    display: show, print
    download: fetch, pull
    enable: switch on, turn on, activate
    ensure: make sure of, guarantee
    exclude: leave out, omit, skip
    execute: run, carry out
    fetch: get, retrieve
    filter: sift, narrow down
    find: locate
    force: compel
    generate: produce, make
    group: bundle, put together
    handle: deal with, take care of, process
    hide: conceal, keep out of sight
    ignore: skip, disregard, pass over
    include: contain, add
    increase: raise, enlarge
    indicate: show, mark, tell
    insert: put in, add
    inspect: examine, look at
    install: set up, put in place
    invoke: call
    limit: cap, restrict, bound
    load: read, bring in
    locate: find
    manage: handle, look after
    merge: combine, join
    modify: change, alter, edit
    monitor: watch, observe
    need: require
    obtain: get, fetch
    omit: leave out
    output: print, write
    override: replace, overrule
    overwrite: replace
    parse: read, analyse
    perform: do, carry out
    pick: choose
    prevent: avoid, stop, keep from
    print: show, write out, output
    process: handle, work through
    provide: offer, give, supply
    raise: throw
    receive: get, take in
    reduce: lower, shrink, cut down
    remove: delete, drop, take out
    replace: substitute, swap out
    represent: stand for, describe
    require: need, ask for, demand
    restart: start again, relaunch
    restrict: limit, confine
    retrieve: get, fetch, obtain
    retry: try again
    return: give back, give
    save: store, keep, write
    select: choose, pick
    send: transmit, pass
    serialize: dump, encode
    set: configure, define, choose
    show: display, present
    skip: leave out, pass over
    sort: order, arrange
    specify: give, define, state, set
    split: divide, cut
    start: begin
    stop: end, halt, quit
    store: keep, save, hold
    support: handle, allow
    suppress: silence, hide, mute
    terminate: end, stop
    test: check, try out
    throw: raise
    transform: convert, turn
    trigger: set off, start, cause
    truncate: cut off, shorten
    update: refresh, bring up to date
    upload: push, send
    validate: check, verify
    verify: check, confirm
    wrap: enclose, surround
    write: save, output
    """
)
OTHER_WORDS = _table(
    """
    additional: further, extra, more
    app: application
    application: app, program
    applications: apps, programs
    argument: parameter
    arguments: parameters
    asynchronous: async
    automatically: by itself, on its own
    before: ahead of, prior to
    beginning: start
    behavior: behaviour, way of working
    computer: machine
    concurrently: at the same time, in parallel
    configuration: setup, settings
    contents: content
    current: present
    database: DB
    details: particulars
    developers: programmers
    dictionary: dict, mapping
    directories: folders
    directory: folder
    element: item
    elements: items
    entire: whole, complete
    errors: failures, problems
    existing: present
    extra: additional
    fast: quick
    folder: directory
    folders: directories
    functions: routines
    given: stated, specified
    incorrect: wrong
    information: details, data
    inside: within
    instance: object
    instances: objects
    invalid: bad, malformed
    item: entry
    items: entries
    jobs: tasks
    large: big
    machine: computer
    manually: by hand
    maximum: largest, highest
    messages: notices
    minimum: smallest, lowest
    missing: absent, lacking
    multiple: several, many
    necessary: needed
    number: count, amount
    parameter: argument
    parameters: arguments
    particular: specific, given
    path: location
    quickly: fast
    required: needed, necessary
    several: multiple, a few
    shell: command line
    simultaneously: at once
    small: little
    specific: particular, certain
    specified: given, stated
    string: text
    tasks: jobs
    terminal: console
    timeout: time limit
    user: person
    users: people
    valid: well-formed
    various: different
    whether: if
    whole: entire
    within: inside
    without: with no
    """
)
DETERMINERS = frozenset(("the", "a", "an", "my", "all", "each", "any", "every", "how", "whether"))
LEFT_OUT = re.compile(
    r"\b(also|simply|just|easily|automatically|explicitly|usually|typically|basically|directly|"
    r"generally|currently|actually|really|very|always|optionally|additionally|further|instead|"
    r"now|properly|correctly|especially|specifically|normally|still|already|even|quite)\b ?"
)


def third_person(verb: str) -> str:
    """Return a verb, or a phrase that begins with one, as he, she or it does it."""
    verb, _, rest = verb.partition(" ")
    if verb in ("be", "have"):
        done = {"be": "is", "have": "has"}[verb]
    elif verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        done = verb + "es"
    else:
        done = verb[:-1] + "ies" if re.search(r"[^aeiou]y$", verb) else verb + "s"
    return f"{done} {rest}".rstrip()


def base_form(word: str) -> str:
    """Return the base form of a verb in any form, "" of what is none that we know."""
    word = word.lower()
    if word in VERBS:
        return word
    if word in IRREGULAR:
        return IRREGULAR[word]
    endings = {"ies": ["y"], "es": ["", "e"], "s": [""], "ied": ["y"], "ed": ["", "e"]}
    for ending, others in {**endings, "ing": ["", "e"]}.items():
        if not word.endswith(ending):
            continue
        stem = word.removesuffix(ending)
        stems = [stem + other for other in others]
        if ending in ("ed", "ing") and stem[-1:] == stem[-2:-1]:
            stems.insert(0, stem[:-1])  # running, stopped
        found = [candidate for candidate in stems if candidate in VERBS]
        if found:
            return found[0]
    return ""


def reword(question: str, rng: random.Random, share: float = 0.35) -> str:
    """Return a question with some of its words left out or given in others.

    Args:
        share: Of the words that others could stand for, how many give way.
    """
    words: list[str] = []
    given = question.split()
    for word, after in zip(given, [*given[1:], ""], strict=True):
        core = word.strip(",?;:")
        before = words[-1].lower() if words else ""
        others = _others(core, before, after) if len(words) > 1 and before != "which" else ()
        if others and rng.random() < share:
            words.append(word.replace(core, rng.choice(others)))
        else:
            words.append(word)
    question = " ".join(words)
    question = LEFT_OUT.sub("", question) if rng.random() < 0.6 else question
    return " ".join(question.split()).replace(" ?", "?")


def _others(word: str, before: str, after: str) -> tuple[str, ...]:
    if word in OTHER_WORDS:
        return OTHER_WORDS[word]
    base = base_form(word)
    if word == base and before in ("to", "i", "me", "can", "will", "not"):
        return OTHER_VERBS.get(base, ())
    if base and word == third_person(base) and after in DETERMINERS:  # else it may be a plural
        return tuple(third_person(each) for each in OTHER_VERBS.get(base, ()))
    return ()
