// Package retention says which backups may go and lets them go: --backup-keep.
//
// A Plan is pure: it is made of what is listed, the policy and the time, and can be shown before anything is deleted. It
// counts verified backups only, and comes to nothing where the listing, the clock or the last verification is in doubt.
package retention
