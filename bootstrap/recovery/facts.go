package recovery

import "etcd-wrapper/lifecycle/machine"

// Condition is how a data directory was found.
type Condition string

// The conditions.
const (
	Empty  Condition = "empty" // there is none, or nothing in it
	Valid  Condition = "valid"
	Broken Condition = "broken"
)

// Owner is whose backups a store has, as seen by the member that asks.
type Owner string

// The owners.
const (
	Nobody   Owner = "nobody's"   // nothing was ever kept: there is no birth certificate
	Ours     Owner = "ours"       // this cluster's
	Doubtful Owner = "doubtful"   // the volume tells no cluster, and the configuration would found another one
	Others   Owner = "of another" // the volume is another cluster's than any that wrote it
)

// Payload is what an event has to tell beside its name. The zero value tells nothing.
type Payload struct {
	Condition Condition // with Examined
	Alone     bool      // with Examined: the member is alone in its cluster, or would found one alone
	Asked     bool      // with Examined and Answered: a restore is asked for that was not done before
	Owner     Owner     // with Answered
	Kept      bool      // with Answered: there is a way to the target
	Behind    bool      // with Answered: the store has more than the volume
	Err       error     // what went wrong, for people
}

// Facts is what the guards may ask about. The zero value is of a run with --recover=auto that has just begun.
type Facts struct {
	Never     bool // --recover=never
	Condition Condition
	Alone     bool
	Asked     bool
	Owner     Owner
	Kept      bool
	Behind    bool
}

// Learn implements machine.Facts.
func (f Facts) Learn(event Event, payload Payload) Facts {
	if event == Examined {
		f.Condition, f.Alone, f.Asked = payload.Condition, payload.Alone, payload.Asked
	}
	if event == Answered {
		f.Owner, f.Kept, f.Behind, f.Asked = payload.Owner, payload.Kept, payload.Behind, payload.Asked
	}
	return f
}

// Conclude implements machine.Facts. What was known of the volume and of the store is forgotten where both are looked at
// anew.
func (f Facts) Conclude(_ State, _ Event, to State, _ Payload) Facts {
	if to == Examine {
		return Facts{Never: f.Never}
	}
	return f
}

// Holds reports whether the guard's condition is true. An unknown guard never holds.
func (f Facts) Holds(guard Guard) bool {
	if guard == machine.Always {
		return true
	}
	holds, known := conditions[guard]
	return known && holds(f)
}

// conditions are what the guards mean.
var conditions = map[Guard]func(Facts) bool{
	AmongOthersAsked:  func(f Facts) bool { return !f.Alone && f.Asked },
	AmongOthers:       func(f Facts) bool { return !f.Alone && !f.Asked && (f.Condition == Valid || f.Condition == Empty) },
	AmongOthersBroken: func(f Facts) bool { return !f.Alone && !f.Asked && f.Condition == Broken },
	LeftAlone:         func(f Facts) bool { return f.Alone && !f.Asked && f.Never && f.Condition == Valid },
	BrokenAlone:       func(f Facts) bool { return f.Alone && f.Condition == Broken },

	WillNotWait: func(f Facts) bool { return f.Never || f.Condition == Broken },

	OtherCluster:     func(f Facts) bool { return f.Owner == Others },
	DoubtfulCluster:  func(f Facts) bool { return f.Owner == Doubtful && !f.Asked },
	AskedAndReadable: func(f Facts) bool { return f.goesBack() && f.Condition == Valid },
	Asked:            func(f Facts) bool { return f.goesBack() && f.Condition != Valid },
	AskedNotKept:     func(f Facts) bool { return f.Asked && f.Owner != Others && !f.Kept },
	NewCluster:       func(f Facts) bool { return !f.Asked && f.Owner == Nobody && f.Condition == Empty },
	NotBehind: func(f Facts) bool {
		return !f.Asked && f.Condition == Valid && (f.Owner == Nobody || f.Owner == Ours && !f.Behind)
	},
	RolledBack:   func(f Facts) bool { return f.comesBack() && !f.Never && f.Condition == Valid },
	BrokenKept:   func(f Facts) bool { return f.comesBack() && !f.Never && f.Condition == Broken },
	LostKept:     func(f Facts) bool { return f.comesBack() && !f.Never && f.Condition == Empty },
	KeptButNever: func(f Facts) bool { return f.comesBack() && f.Never },
}

// goesBack says that a restore is asked for and possible.
func (f Facts) goesBack() bool {
	return f.Asked && f.Kept && (f.Owner == Ours || f.Owner == Doubtful)
}

// comesBack says that the store has what the volume lacks.
func (f Facts) comesBack() bool {
	return !f.Asked && f.Owner == Ours && f.Kept && (f.Condition != Valid || f.Behind)
}
