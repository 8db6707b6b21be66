/** Whether tests run at full length: `scripts/test --full` sets the variable. */
export const isFull = process.env['BERTH_TEST_FULL'] === '1';
