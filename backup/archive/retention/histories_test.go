package retention

import (
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/format"
)

var (
	now    = time.Date(2026, time.November, 22, 12, 30, 0, 0, time.UTC) // a Sunday
	policy = Policy{Points: 24 * time.Hour, Hourly: 3, Daily: 2, Weekly: 2}
)

// past is a time before now.
func past(d time.Duration) time.Time { return now.Add(-d) }

// result of a full that was made at a time.
func result(outcome archive.Outcome, revision int64, at time.Time) *archive.Result {
	return &archive.Result{Generation: 1, Revision: revision, Outcome: outcome, Why: "its hash differs", At: at.Add(time.Minute)}
}

// fullAt is a verified full, whose revision is the minutes since 1 November.
func fullAt(at time.Time) archive.KeptFull {
	revision := int64(at.Sub(time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC))/time.Minute) + 100_000
	return archive.KeptFull{
		Full: archive.Full{Generation: 1, Revision: revision, Next: format.After(revision), Time: at},
		Size: 1000, Stored: at.Add(time.Second), Result: result(archive.Verified, revision, at),
	}
}

// chain is one with a segment up to the next full, and one behind the last.
func chain(fulls ...archive.KeptFull) archive.Chain {
	c := archive.Chain{Fulls: fulls, From: fulls[0].Revision, Begin: fulls[0].Time}
	last := fulls[len(fulls)-1]
	c.To, c.End = last.Revision+10, last.Time.Add(10*time.Minute)
	for i, full := range fulls {
		object := archive.Object{Level: archive.Segment, Generation: 1, Start: full.Next, Size: 10, Modified: full.Time}
		if i+1 < len(fulls) {
			object.Next = fulls[i+1].Next
		}
		c.Objects = append(c.Objects, object)
	}
	return c
}

// history of one generation that consists of chains.
func history(chains ...archive.Chain) *archive.History {
	g := archive.Generational{Generation: archive.Generation{Number: 1, Created: past(1000 * day)}, Chains: chains}
	for _, c := range chains {
		g.Fulls = append(g.Fulls, c.Fulls...)
		g.Objects = append(g.Objects, c.Objects...)
	}
	return &archive.History{Cluster: &archive.Cluster{}, Generations: []archive.Generational{g}}
}

func hourly(from, to time.Duration) (fulls []archive.KeptFull) {
	for age := from; age >= to; age -= time.Hour {
		fulls = append(fulls, fullAt(past(age)))
	}
	return fulls
}

func plan(h *archive.History) Plan { return Make(policy, Facts{History: h, Now: now, Store: now}) }

// ages of the fulls that stay, in hours.
func stay(p Plan) (ages []int) {
	for _, item := range p.Items {
		if item.Kind == Full && (!item.Goes || len(p.Unsafe) > 0) {
			ages = append(ages, int(now.Sub(item.Time)/time.Hour))
		}
	}
	return ages
}

func countdown(from int) (all []int) {
	for age := from; age >= 0; age-- {
		all = append(all, age)
	}
	return all
}
