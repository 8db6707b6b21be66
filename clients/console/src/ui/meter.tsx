import type { JSX } from 'preact';

interface MeterProps {
  readonly label: string;
  /** The value in words, so that the bar need not be read. */
  readonly value: string;
  /** How much is used, 0 to 1; undefined: there is no limit. */
  readonly share: number | undefined;
}

/** How much of something is used. */
export const Meter = ({ label, value, share }: MeterProps): JSX.Element => (
  <div class="meter">
    <span class="meter-label">{label}</span>
    <span class="meter-value">{value}</span>
    {share === undefined ? null : (
      <progress
        class={share >= 0.9 ? 'full' : ''}
        aria-label={label}
        max={1}
        value={Math.min(1, Math.max(0, share))}
      />
    )}
  </div>
);
